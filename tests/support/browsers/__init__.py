"""The browsers that the page is tested in, as Debian packages them."""

from tests.support.browsers.base import Browser
from tests.support.browsers.chromium import Chromium
from tests.support.browsers.firefox import Firefox

__all__ = ["BROWSERS", "Browser", "Chromium", "Firefox"]

BROWSERS = {browser.name: browser for browser in (Chromium, Firefox)}

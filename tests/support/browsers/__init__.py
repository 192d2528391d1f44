"""The browsers that the page is tested in, as Debian packages them."""

from tests.support.browsers.base import Browser
from tests.support.browsers.chromium import Chromium
from tests.support.browsers.firefox import Firefox
from tests.support.browsers.webkit import WebKit

__all__ = ["BROWSERS", "Browser", "Chromium", "Firefox", "WebKit"]

# Of all tests of the page; WebKit's driver has too little for some of them.
BROWSERS = {browser.name: browser for browser in (Chromium, Firefox)}

"""The browsers that the page is tested in, as Debian packages them."""

from tests.support.browsers.base import Browser
from tests.support.browsers.chromium import Chromium
from tests.support.browsers.firefox import Firefox
from tests.support.browsers.webkit import WebKit

__all__ = ["BROWSERS", "Browser", "Chromium", "Firefox", "WebKit"]

BROWSERS = {
    browser.name: browser for browser in (Chromium, Firefox)
}  # of all tests; WebKit's driver has too little for some

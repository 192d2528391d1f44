// Says that the browser is too old. In old JavaScript, and no module: such a browser may not be able to read the others.

if (!window.HTMLDialogElement || !window.AbortSignal || !AbortSignal.prototype.throwIfAborted) {
  document.getElementById("too-old").hidden = false;
}

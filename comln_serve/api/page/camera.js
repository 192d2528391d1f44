// Pictures from the camera, where the browser grants it (https, or the machine itself).

import { announce } from "./announce.js";
import { openDialog } from "./dialog.js";
import { button, el } from "./dom.js";
import { counted } from "./words.js";

export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);

/** Opens the camera; take(file) is called for each picture. */
export function openCamera(label, take) {
  let stream = null;
  let closed = false;
  let taken = 0;
  const video = el("video", { muted: true, autoplay: true, playsInline: true, "aria-label": "The camera's picture" });
  const status = el("p", { class: "hint", role: "status" }, "Waiting for the camera ...");
  const one = button("Take a picture", shoot, { class: "primary", disabled: true });

  async function shoot() {
    const canvas = document.createElement("canvas");
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    canvas.getContext("2d").drawImage(video, 0, 0);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
    if (blob === null || closed) return;
    taken += 1;
    take(new File([blob], `camera-${taken}.jpg`, { type: blob.type }));
    status.textContent = counted(taken, "picture");
  }
  function close() {
    closed = true;
    for (const track of stream?.getTracks() ?? []) track.stop();
    announce(`${counted(taken, "picture")} taken.`);
  }
  openDialog(`Camera: ${label}`, [video, el("p", { class: "actions" }, one), status], { closed: close });
  navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } }, audio: false }).then(
    (granted) => {
      stream = granted;
      if (closed) return close();
      video.srcObject = stream;
      video.onplaying = () => {
        one.disabled = false;
        status.textContent = "Ready.";
        one.focus();
      };
    },
    (error) => (status.textContent = `The browser does not give the camera: ${error.message}`),
  );
}

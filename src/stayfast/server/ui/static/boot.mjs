// The first module: the header and the empty tiles of index.html are on the screen before any other module runs.
import "./theme.mjs";

const PAINTED_WITHIN_MS = 500; // a browser may draw no frames for a window that is covered

await new Promise((done) => {
  setTimeout(done, document.hidden ? 0 : PAINTED_WITHIN_MS);
  requestAnimationFrame(() => setTimeout(done)); // after this frame
});
document.head.append(Object.assign(document.createElement("link"), {
  rel: "stylesheet", href: new URL("views.css", import.meta.url).href }));
await import("./app.mjs");

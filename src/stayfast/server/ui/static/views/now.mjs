import { html } from "../lib.mjs";
import { Empty } from "../parts.mjs";

export function View() {
  return html`<${Empty} title="Not here yet" />`;
}

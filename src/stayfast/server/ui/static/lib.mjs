// The libraries under one name: views import from here and never name a version.
export { Component, Fragment, createContext, h, render } from "./vendor/preact-11.2.0.mjs";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState }
  from "./vendor/preact-hooks-11.2.0.mjs";
import { h } from "./vendor/preact-11.2.0.mjs";
import htm from "./vendor/htm-3.1.1.mjs";

export const html = htm.bind(h);

/** The address of an endpoint of the gateway, also behind a proxy's path prefix. */
export const endpoint = (path) => new URL(`..${path}`, import.meta.url).href;

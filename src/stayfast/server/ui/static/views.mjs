// The views in the order of their keys 1 to 9. A view is a module in `views/` that exports `View({address, live, frame})`.
// address: the state of the page (address.mjs); live: the connection (live.mjs); frame: the last LiveFrame, or null.
export const VIEWS = [
  { id: "now", title: "Now", load: () => import("./views/now.mjs") },
  { id: "requests", title: "Requests", load: () => import("./views/requests.mjs") },
  { id: "stages", title: "Stages", load: () => import("./views/stages.mjs") },
  { id: "caches", title: "Caches", load: () => import("./views/caches.mjs") },
  { id: "tenants", title: "Tenants", load: () => import("./views/tenants.mjs") },
  { id: "jobs", title: "Jobs", load: () => import("./views/jobs.mjs") },
  { id: "fleet", title: "Fleet", load: () => import("./views/fleet.mjs") },
  { id: "doctor", title: "Doctor", load: () => import("./views/doctor.mjs") },
  { id: "settings", title: "Settings", load: () => import("./views/settings.mjs") },
];

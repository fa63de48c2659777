/** All routes of the HTTP API. */
import type { App } from './http/app.ts';
import { addVMRoutes } from './vms/routes.ts';

export function addRoutes(app: App): void {
  addVMRoutes(app);
}

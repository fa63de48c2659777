/** All routes of the HTTP API. */
import type { App } from './http/app.ts';
import type { Services } from './services.ts';
import { addVMConfigRoutes } from './vmconfigs/routes.ts';
import { addVMRoutes } from './vms/routes.ts';

export function addRoutes(app: App, services: Services): void {
  addVMRoutes(app);
  addVMConfigRoutes(app, services);
}

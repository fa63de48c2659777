/** All routes of the HTTP API. */
import { addCertificateRoutes } from './certificate/routes.ts';
import { addClusterRoutes } from './cluster/routes.ts';
import { addEmulatorRoutes } from './emulators/routes.ts';
import type { App } from './http/app.ts';
import { addImageCacheRoutes } from './imagecache/routes.ts';
import { addNodeRoutes } from './nodes/routes.ts';
import { addImageRoutes } from './images/routes.ts';
import type { Services } from './services.ts';
import { addVMConfigRoutes } from './vmconfigs/routes.ts';
import { addVMRoutes } from './vms/routes.ts';

export function addRoutes(app: App, services: Services): void {
  addClusterRoutes(app, services);
  addCertificateRoutes(app, services);
  addNodeRoutes(app, services);
  addImageCacheRoutes(app, services);
  addVMRoutes(app, services);
  addVMConfigRoutes(app, services);
  addImageRoutes(app, services);
  addEmulatorRoutes(app, services);
}

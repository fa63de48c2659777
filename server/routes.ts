/** All routes of the HTTP API. */
import { addCertificateRoutes } from './cluster/certificateroutes.ts';
import { addClusterRoutes } from './cluster/routes.ts';
import { addDocumentationRoutes } from './documentation/routes.ts';
import { addEmulatorRoutes } from './emulators/routes.ts';
import type { App } from './http/app.ts';
import { addImageCacheRoutes } from './imagecache/routes.ts';
import { addNodeRoutes } from './nodes/routes.ts';
import { addImageRoutes } from './images/routes.ts';
import { addNamespaceRoutes } from './namespaces/routes.ts';
import { addRegistryCredentialRoutes } from './registrycredentials/routes.ts';
import { addRoleBindingRoutes } from './rolebindings/routes.ts';
import { addServiceAccountRoutes } from './serviceaccounts/routes.ts';
import type { Services } from './services.ts';
import { addVMConfigRoutes } from './vmconfigs/routes.ts';
import type { Deploys } from './vms/deploy.ts';
import { addVMRoutes } from './vms/routes.ts';

export function addRoutes(app: App, services: Services, deploys: Deploys): void {
  addClusterRoutes(app, services);
  addCertificateRoutes(app, services);
  addNamespaceRoutes(app, services);
  addNodeRoutes(app, services);
  addImageCacheRoutes(app, services);
  addVMRoutes(app, services, deploys);
  addVMConfigRoutes(app, services);
  addImageRoutes(app, services);
  addEmulatorRoutes(app, services);
  addRegistryCredentialRoutes(app);
  addServiceAccountRoutes(app);
  addRoleBindingRoutes(app);
  addDocumentationRoutes(app);
}

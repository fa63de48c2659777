/**
 * The parts of the server that act with its own identity. Before each action, the server checks a right of the caller: see {@link Rights}.
 */
import type { Logger } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import type { ServerConfig } from '../config.ts';
import { UploadedCertificate } from '../certificate/uploaded.ts';
import { Hosts } from './hosts.ts';
import { Rights } from './rights.ts';
import { Watches } from './watches.ts';

export interface Own {
  readonly client: KubeClient;
  readonly rights: Rights;
  readonly watches: Watches;
  readonly hosts: Hosts;
  readonly certificate: UploadedCertificate;
}

export interface OwnOptions {
  readonly client: KubeClient;
  readonly authorizer: Authorizer;
  readonly logger: Logger;
  readonly namespaces: ServerConfig['namespaces'];
}

export function createOwn({ client, authorizer, logger, namespaces }: OwnOptions): Own {
  const watches = new Watches(client, logger);
  return {
    client,
    watches,
    rights: new Rights(authorizer),
    hosts: new Hosts(watches, namespaces.default),
    certificate: new UploadedCertificate({ client, logger, namespace: namespaces.system }),
  };
}

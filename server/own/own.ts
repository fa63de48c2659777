/** What the server does with its own identity. Each use needs a right of the caller first: see {@link Rights}. */
import type { Logger } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import { Hosts } from './hosts.ts';
import { Rights } from './rights.ts';
import { Watches } from './watches.ts';

export interface Own {
  readonly client: KubeClient;
  readonly rights: Rights;
  readonly watches: Watches;
  readonly hosts: Hosts;
}

export interface OwnOptions {
  readonly client: KubeClient;
  readonly authorizer: Authorizer;
  readonly logger: Logger;
  readonly defaultNamespace: string;
}

export function createOwn({ client, authorizer, logger, defaultNamespace }: OwnOptions): Own {
  const watches = new Watches(client, logger);
  return { client, watches, rights: new Rights(authorizer), hosts: new Hosts(watches, defaultNamespace) };
}

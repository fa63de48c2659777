/** The power API with a system namespace of its own, users with passwords, and a stand-in for the operator. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { hashSync } from 'bcryptjs';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { ServerSpec } from '../../api/v1alpha1/server.ts';
import { SERVER_USERS_SECRET } from '../../api/v1alpha1/serverusers.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { NAMESPACES, SECRETS } from '../../kube/core.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { PowerStandIn } from './powerstandin.ts';

const RBAC = join(import.meta.dirname, '..', '..', 'charts', 'berth', 'files', 'rbac');
/** Smallest cost of bcrypt. A check with it takes 2 ms. */
const LEAST_COST = 4;

export interface PowerOptions {
  readonly trustedProxies?: readonly string[];
  readonly lockout?: { failures?: number; seconds?: number };
}

export class PowerWorld {
  readonly standIn: PowerStandIn;
  readonly #cluster: Cluster;
  readonly #system: string;
  readonly #servers: ServerProcess[] = [];
  readonly #clients: HTTPClient[] = [];
  readonly #created: string[] = [];

  private constructor(cluster: Cluster, system: string) {
    this.#cluster = cluster;
    this.#system = system;
    this.standIn = new PowerStandIn(cluster.client());
  }

  /**
   * Creates the system namespace with the rights of the chart in it, unless it is that of the cluster, and the users with these passwords.
   */
  static async create(
    cluster: Cluster,
    system: string,
    users: Record<string, string>,
    { cost = LEAST_COST } = {},
  ): Promise<PowerWorld> {
    if (system !== SYSTEM_NAMESPACE) {
      await createSystem(cluster, system);
    }
    const lines = Object.entries(users).map(([name, password]) => `${name}:${hashSync(password, cost)}\n`);
    await cluster.client().create(SECRETS, {
      metadata: { namespace: system, name: SERVER_USERS_SECRET },
      stringData: { htpasswd: lines.join('') },
    });
    return new PowerWorld(cluster, system);
  }

  /** Starts a replica of the HTTP API with the power API. */
  async startReplica({ trustedProxies = [], lockout = {} }: PowerOptions = {}): Promise<ServerProcess> {
    const server = await this.#cluster.startServer({
      name: `${this.#system}-power-${this.#servers.length}`,
      config: {
        namespaces: { system: this.#system },
        power: { enabled: true, trustedProxies, lockout },
      },
    });
    this.#servers.push(server);
    return server;
  }

  /** Returns a client of the power API of a replica, which connects from an address of the loopback network. */
  client({ powerUrl, authority }: ServerProcess, localAddress?: string): HTTPClient {
    const client = new HTTPClient({ url: powerUrl, authority }, { localAddress });
    this.#clients.push(client);
    return client;
  }

  /** Creates a Server whose controller is the stand-in. */
  async createServer(name: string, spec: Partial<ServerSpec> & Pick<ServerSpec, 'addresses'>): Promise<void> {
    this.#created.push(name);
    await this.#cluster.client().create(SERVERS, {
      metadata: { name },
      spec: { controller: { redfish: { endpoint: 'https://192.0.2.250' } }, ...spec },
    });
  }

  async end(): Promise<void> {
    this.standIn.stop();
    await Promise.all(this.#clients.map(async (client) => await client.close()));
    await Promise.all(this.#servers.map(async ({ process }) => await process.stop()));
    for (const name of this.#created) {
      await this.#cluster.client().delete(SERVERS, { name });
    }
    if (this.#system === SYSTEM_NAMESPACE) {
      await this.#cluster.client().delete(SECRETS, { namespace: this.#system, name: SERVER_USERS_SECRET });
    } else {
      await this.#cluster.kubectl(['delete', 'namespace', this.#system, '--wait=false']);
    }
  }
}

async function createSystem(cluster: Cluster, system: string): Promise<void> {
  await cluster.client().create(NAMESPACES, { metadata: { name: system } });
  const documents = ['server.yaml', 'power.yaml'].flatMap((file) =>
    readFileSync(join(RBAC, file), 'utf8').split('\n---\n'),
  );
  const objects = documents
    .filter((text) => /^kind: (Secret|Role|RoleBinding)$/m.test(text))
    .map((text) => text.replace('  namespace: berth-system', `  namespace: ${system}`));
  await cluster.kubectl(['create', '-f', '-'], { input: objects.join('\n---\n') });
}

/** Returns the header of a user with a password. */
export function basic(name: string, password: string): Record<string, string> {
  return { authorization: `Basic ${Buffer.from(`${name}:${password}`).toString('base64')}` };
}

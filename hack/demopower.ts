/**
 * Gives the demo one Server. Its controller is the Redfish emulator of sushy-tools, a stand-in: it has the API of a real controller, and no
 * machine behind it.
 */
import { randomBytes } from 'node:crypto';
import { join, relative } from 'node:path';
import { hash } from 'bcryptjs';
import { writeWholeSync } from '../base/files.ts';
import { SYSTEM_NAMESPACE } from '../api/v1alpha1/names.ts';
import { SERVERS } from '../api/v1alpha1/resources.ts';
import { createKey } from '../kube/certificates/certificate.ts';
import { SECRETS } from '../kube/core.ts';
import { createAuthority, issue } from './cluster/authority.ts';
import type { Cluster } from './cluster/index.ts';
import { freePort } from './cluster/ports.ts';
import { startProcess } from './cluster/processes.ts';
import { planRedfishEmulator } from './python/redfish.ts';
import { waitFor } from './wait.ts';

const SERVER = 'rack-1';
/** An address for documentation (RFC 5737). Nothing is sent to it. */
const ADDRESS = '192.0.2.10';
const SYSTEM = '3f5ab8ae-9d0c-4a11-8a6c-0a2b3c4d5e6f';
const CONTROLLER_USER = 'admin';
const USER = 'demo';
/** Length of passwords in random bytes. */
const PASSWORD_BYTES = 12;
/** Cost of bcrypt hashes. It is the cost of `berth server user add`. */
const BCRYPT_COST = 10;
/** Time limit until the power is known. The emulator needs a few seconds to start. */
const READ_MILLISECONDS = 60_000;

/**
 * Starts the emulator, creates its Server, and allows one user to act. Writes the address of the power API (`power.url`) and NAME:PASSWORD
 * of the user (`power.user`) into the folder of the demo. Returns three commands.
 */
export async function addDemoPower(cluster: Cluster, url: string): Promise<string> {
  const client = cluster.client();
  const password = randomPassword();
  const controller = await startController(cluster, password);
  const secret = 'rack-1-controller';
  await client.create(SECRETS, {
    metadata: { namespace: SYSTEM_NAMESPACE, name: secret },
    type: 'kubernetes.io/basic-auth',
    data: encoded({ username: CONTROLLER_USER, password }),
  });
  await client.create(SERVERS, {
    metadata: { name: SERVER },
    spec: {
      displayName: 'Rack 1',
      addresses: [ADDRESS],
      type: 'emulated',
      location: 'this machine',
      controller: { redfish: controller, secretName: secret },
    },
  });
  const user = `${USER}:${randomPassword()}`;
  const htpasswd = `${USER}:${await hash(user.slice(USER.length + 1), BCRYPT_COST)}\n`;
  await client.create(SECRETS, {
    metadata: { namespace: SYSTEM_NAMESPACE, name: 'berth-server-users' },
    type: 'Opaque',
    data: encoded({ htpasswd }),
  });
  const path = (name: string) => join(cluster.directory, name);
  writeWholeSync(path('power.url'), url);
  writeWholeSync(path('power.user'), user, 0o600);
  await waitFor(
    `the power of Server ${SERVER}`,
    async () => (await client.get(SERVERS, { name: SERVER })).status?.power === 'On',
    { deadlineMilliseconds: READ_MILLISECONDS },
  );
  const shown = (name: string) => relative(process.cwd(), path(name));
  const curl = `curl --cacert ${shown('authority.crt')} -u "$(cat ${shown('power.user')})" ${url}/core/api/servers`;
  return [curl, `${curl}/${ADDRESS}`, `${curl}/${SERVER}/Reboot`].join('\n  ');
}

async function startController(cluster: Cluster, password: string) {
  const authority = await createAuthority('demo-controllers');
  const key = await createKey();
  const cert = await issue(authority, {
    commonName: SERVER,
    key,
    ipAddresses: ['127.0.0.1'],
    usages: ['server'],
  });
  const port = await freePort();
  const plan = await planRedfishEmulator({
    folder: join(cluster.directory, 'controller'),
    port,
    systems: [{ uuid: SYSTEM, name: SERVER, power: 'On' }],
    certificate: { cert, key: key.pem },
    username: CONTROLLER_USER,
    passwordHash: await hash(password, BCRYPT_COST),
  });
  await startProcess(cluster.directory, plan);
  return { endpoint: `https://127.0.0.1:${port}`, authority: authority.certificate };
}

function randomPassword(): string {
  return randomBytes(PASSWORD_BYTES).toString('base64url');
}

function encoded(data: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(data).map(([key, value]) => [key, Buffer.from(value).toString('base64')]),
  );
}

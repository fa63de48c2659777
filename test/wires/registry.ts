/** A real registry on a loopback address, for tests. It is Debian's docker-registry with TLS and a password. Skopeo adds images. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Agent, request } from 'undici';
import { stringify } from 'yaml';
import { createKey } from '../../kube/certificates/certificate.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { type Authority, createAuthority, issue } from '../../hack/cluster/authority.ts';
import { Wire } from './tcp.ts';
import { waitFor } from '../../hack/wait.ts';

export const USER = 'berth';
export const PASSWORD = 'berth-test';
/** Name of the registry in its certificate. Only the tests' proxy knows its address. */
export const PROXIED_NAME = 'registry.berth.test';
/** bcrypt hash of the password. It has the lowest allowed cost, because servers compute the hash for every request. */
export const PASSWORD_HASH = '$2y$05$abcdefghijklmnopqrstuupAN5U5wYWVs79LoNJdNIIaTJdfN5k9e';
/** Time limit of a run of skopeo. A copy of several gigabytes takes seconds. */
const SKOPEO_MILLISECONDS = 120_000;
const LOG_BYTES = 16 * 1024 ** 2;

export interface RegistryOptions {
  /** Whether manifests can be deleted. The default is true. */
  deletes?: boolean;
  /** Folder of the registry. It is created. Blobs are below `data`. */
  directory: string;
  /** Whether the registry uses TLS. The default is true. */
  tls?: boolean;
  /** Whether the registry needs a password. The default is true. With `token`, the registry needs a token instead. */
  password?: boolean;
  /** Token server at which clients get their tokens. */
  token?: { realm: string; service: string; issuer: string };
  /** Authority that signs the registry's certificate. The default is an authority for this registry only. */
  authority?: Authority;
}

export interface LoggedRequest {
  method: string;
  path: string;
  status: number;
}

export interface TestRegistry {
  /** Host for image references: `127.0.0.1:PORT`. */
  readonly host: string;
  /** Host of the registry without {@link traffic} before it. It is for measurements. It works only without a password. */
  readonly directHost: string;
  readonly url: string;
  /** Path of the authority's certificate. The file exists also without TLS. */
  readonly caFile: string;
  readonly directory: string;
  /** The wire over which clients reach {@link host}. */
  readonly traffic: Wire;
  /** Returns the content of a pull secret for this registry. The default is the right password. */
  dockerConfigJson(password?: string): string;
  /** Returns all requests that the registry has answered. */
  requests(): Promise<LoggedRequest[]>;
  /** Runs skopeo with the registry's password, and returns its output. */
  skopeo(...parameters: string[]): Promise<string>;
  /** Stops the registry until `restart` is called. Open and new connections fail. */
  stop(): Promise<void>;
  /** Starts the registry again at the same address. */
  restart(): Promise<void>;
  close(): Promise<void>;
}

/** Starts a registry and resolves when it answers. The caller closes the registry. */
export async function startRegistry(options: RegistryOptions): Promise<TestRegistry> {
  const { directory, tls = true } = options;
  await mkdir(join(directory, 'data'), { recursive: true });
  const port = await freePort();
  await writeConfiguration(options, port);
  let child = spawnRegistry(directory);
  const traffic = await Wire.open(port);
  const host = `127.0.0.1:${traffic.port}`;
  const url = `${tls ? 'https' : 'http'}://${host}`;
  const caFile = join(directory, 'ca.crt');
  const dockerConfigJson = (password = PASSWORD): string => {
    const auth = Buffer.from(`${USER}:${password}`).toString('base64');
    return JSON.stringify({ auths: { [host]: { auth } } });
  };
  const authFile = join(directory, 'auth.json');
  await writeFile(authFile, dockerConfigJson(), { mode: 0o600 });
  const registry: TestRegistry = {
    host,
    directHost: `127.0.0.1:${port}`,
    url,
    caFile,
    directory,
    traffic,
    dockerConfigJson,
    requests: async () => await readRequests(join(directory, 'registry.log')),
    skopeo: async (...parameters) => {
      const environment = { ...process.env, SSL_CERT_FILE: caFile, REGISTRY_AUTH_FILE: authFile };
      const { stdout } = await promisify(execFile)('skopeo', ['--insecure-policy', ...parameters], {
        env: environment,
        timeout: SKOPEO_MILLISECONDS,
        maxBuffer: LOG_BYTES,
      });
      return stdout;
    },
    stop: async () => await endRegistry(child),
    restart: async () => {
      await endRegistry(child);
      child = spawnRegistry(directory);
      await waitUntilReady(url, caFile, child);
    },
    close: async () => {
      traffic[Symbol.dispose]();
      await endRegistry(child);
    },
  };
  try {
    await waitUntilReady(url, caFile, child);
  } catch (error) {
    await registry.close();
    throw error;
  }
  return registry;
}

/** Returns a key and a certificate for the loopback address, signed by the authority. */
export async function serverCertificate(authority: Authority): Promise<{ key: string; cert: string }> {
  const key = await createKey();
  const cert = await issue(authority, {
    key,
    commonName: 'registry',
    dnsNames: ['localhost', PROXIED_NAME],
    ipAddresses: ['127.0.0.1'],
    usages: ['server'],
  });
  return { key: key.pem, cert };
}

export async function testAuthority(): Promise<Authority> {
  return await createAuthority('berth tests');
}

async function writeConfiguration(options: RegistryOptions, port: number): Promise<void> {
  const { directory, tls = true, password = true, token } = options;
  const authority = options.authority ?? (await testAuthority());
  const files = {
    ca: join(directory, 'ca.crt'),
    certificate: join(directory, 'tls.crt'),
    key: join(directory, 'tls.key'),
    htpasswd: join(directory, 'htpasswd'),
  };
  const { key, cert } = await serverCertificate(authority);
  await writeFile(files.ca, authority.certificate);
  await writeFile(files.certificate, cert);
  await writeFile(files.key, key, { mode: 0o600 });
  await writeFile(files.htpasswd, `${USER}:${PASSWORD_HASH}\n`, { mode: 0o600 });
  const htpasswd = password ? { auth: { htpasswd: { realm: 'tests', path: files.htpasswd } } } : {};
  const configuration = {
    version: '0.1',
    log: { level: 'info', formatter: 'json' },
    storage: {
      filesystem: { rootdirectory: join(directory, 'data') },
      delete: { enabled: options.deletes ?? true },
      maintenance: { uploadpurging: { enabled: false } },
    },
    http: {
      addr: `127.0.0.1:${port}`,
      // With a fixed secret, uploads can continue after a restart.
      secret: 'berth-tests',
      ...(tls ? { tls: { certificate: files.certificate, key: files.key } } : {}),
    },
    ...(token === undefined ? htpasswd : { auth: { token: { ...token, rootcertbundle: files.ca } } }),
  };
  await writeFile(join(directory, 'config.yml'), stringify(configuration));
}

function spawnRegistry(directory: string): ChildProcess {
  const log = openSync(join(directory, 'registry.log'), 'a', 0o600);
  const child = spawn('docker-registry', ['serve', join(directory, 'config.yml')], {
    stdio: ['ignore', log, log],
    // Without this setting, the registry sends traces to a collector on the network.
    env: { PATH: process.env['PATH'], OTEL_TRACES_EXPORTER: 'none' },
  });
  closeSync(log);
  const onExit = (): void => void child.kill('SIGKILL');
  process.once('exit', onExit);
  child.once('exit', () => process.off('exit', onExit));
  return child;
}

async function endRegistry(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) {
    return;
  }
  const ended = once(child, 'exit');
  // The registry has no work to finish. After SIGTERM it would wait for open connections.
  child.kill('SIGKILL');
  await ended;
}

async function waitUntilReady(url: string, caFile: string, child: ChildProcess): Promise<void> {
  const dispatcher = new Agent({ connect: { ca: await readFile(caFile, 'utf8') } });
  const failed = once(child, 'error').then(([error]) => Promise.reject(error as Error));
  // The rejection must not be unhandled if the race has already ended.
  failed.catch(() => undefined);
  try {
    const ready = waitFor('the registry to answer', async () => {
      const { statusCode, body } = await request(`${url}/v2/`, { dispatcher });
      await body.dump();
      return statusCode === 200 || statusCode === 401;
    });
    await Promise.race([ready, failed]);
  } finally {
    await dispatcher.destroy();
  }
}

/** Reads requests from the registry's access log, which has the common log format of web servers. */
async function readRequests(file: string): Promise<LoggedRequest[]> {
  const lines = (await readFile(file, 'utf8')).matchAll(/"([A-Z]+) (\/\S*) HTTP\/[\d.]+" (\d{3}) /g);
  return [...lines].map(([, method = '', path = '', status]) => ({ method, path, status: Number(status) }));
}

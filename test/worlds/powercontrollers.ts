/**
 * Controllers of servers: the Redfish emulator of sushy-tools, the IPMI simulator of OpenIPMI, and a web server that stands in for a smart
 * plug. All are on loopback.
 */
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ServerController } from '../../api/v1alpha1/server.ts';
import { type Authority, issue } from '../../hack/cluster/authority.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { type ProcessPlan, signalProcess, startProcess, stopProcess } from '../../hack/cluster/processes.ts';
import { planRedfishEmulator } from '../../hack/python/install.ts';
import { waitFor } from '../../hack/wait.ts';
import { createKey } from '../../kube/certificates/certificate.ts';
import { createDriver } from '../../operator/server/drivers/create.ts';
import type { Credentials } from '../../operator/server/drivers/driver.ts';
import { PASSWORD, PASSWORD_HASH, USER } from '../wires/registry.ts';

export const CREDENTIALS: Credentials = { username: USER, password: PASSWORD };
const SYSTEM = '27946b59-9e44-4fa7-8e91-f3527a1ef094';
/** Time limit of a start of Python on a busy machine, after the installation. */
const START_MILLISECONDS = 60_000;

export interface PowerWorldOptions {
  /** Authority that signs the certificate of the controller. */
  readonly authority: Authority;
  /** Whether the controller accepts commands and does nothing. */
  readonly lies?: boolean;
  /** DNS name in the certificate of the controller, in the place of its address. */
  readonly otherName?: string;
}

/** A controller of a server that is off at first. */
export interface PowerWorld extends AsyncDisposable {
  readonly controller: ServerController;
  /** Lets the controller be silent: it takes connections and answers nothing. */
  readonly freeze: () => Promise<void>;
  readonly thaw: () => Promise<void>;
  /** Takes the controller away from its address. */
  readonly stop: () => Promise<void>;
}

/** Starts the Redfish emulator. */
export async function startRedfish({ authority, lies, otherName }: PowerWorldOptions): Promise<PowerWorld> {
  await using parts = new AsyncDisposableStack();
  const folder = await temporaryFolder(parts);
  const port = await freePort();
  const plan = await planRedfishEmulator({
    folder,
    port,
    systems: [{ uuid: SYSTEM, name: 'rack1', power: 'Off' }],
    certificate: await certificate(authority, otherName),
    username: USER,
    passwordHash: PASSWORD_HASH,
    lines: lies === true ? LYING_EMULATOR : [],
  });
  const process = await startPart(parts, folder, plan);
  await waitFor(
    'the Redfish emulator to listen',
    async () => (await readFile(join(folder, `${plan.name}.log`), 'utf8')).includes('Running on https'),
    { deadlineMilliseconds: START_MILLISECONDS },
  );
  const redfish = { endpoint: `https://127.0.0.1:${port}`, authority: authority.certificate };
  return processWorld({ redfish }, process, parts.move());
}

/** The fake driver has no such behaviour. Its configuration is a Python program, so it can replace a method. */
const LYING_EMULATOR = [
  'from sushy_tools.emulator.resources.systems.fakedriver import FakeDriver',
  'FakeDriver.set_power_state = lambda self, identity, state: None',
];

/** Starts the IPMI simulator. It knows cipher suite 3 and not 17. */
export async function startIpmi({ lies }: PowerWorldOptions): Promise<PowerWorld> {
  await using parts = new AsyncDisposableStack();
  const folder = await temporaryFolder(parts);
  const port = await freePort();
  const write = async (name: string, content: string, mode = 0o600): Promise<string> => {
    const path = join(folder, name);
    await writeFile(path, content, { mode });
    return path;
  };
  const power = await write('power', '0');
  const set = lies === true ? ':' : `echo "$3" > ${power}`;
  // The simulator calls it with `get power` and `set power 0` or `set power 1`.
  const script = `#!/bin/sh\nif [ "$1" = get ]; then echo "power:$(cat ${power})"; else ${set}; fi\n`;
  const configuration = await write(
    'lan.conf',
    [
      'name "berth"',
      'startlan 1',
      `  addr 127.0.0.1 ${port}`,
      '  priv_limit admin',
      '  allowed_auths_admin none md2 md5 straight',
      '  guid a123456789abcdefa123456789abcdef',
      'endlan',
      `chassis_control "${await write('chassis-control', script, 0o700)}"`,
      `user 2 true "${USER}" "${PASSWORD}" operator 10 none md2 md5 straight`,
      '',
    ].join('\n'),
  );
  const bmc = 'mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\nmc_enable 0x20\n';
  const process = await startPart(parts, folder, {
    name: 'ipmi',
    file: 'ipmi_sim',
    arguments: ['-n', '-c', configuration, '-f', await write('bmc.emu', bmc), '-s', folder],
  });
  const controller = { ipmi: { address: '127.0.0.1', port, cipherSuite: 3 as const } };
  await waitFor(
    'the IPMI simulator to answer',
    async () => await createDriver(controller, CREDENTIALS).read(),
  );
  return processWorld(controller, process, parts.move());
}

/** Starts a web server with the URLs of a smart plug. It takes only requests with the credentials. */
export async function startWebhook({ authority, lies, otherName }: PowerWorldOptions): Promise<PowerWorld> {
  const token = Buffer.from(`${USER}:${PASSWORD}`).toString('base64');
  let isOn = false;
  let frozen: PromiseWithResolvers<void> | undefined;
  const server = createServer(await certificate(authority, otherName), (request, response) => {
    void (async () => {
      await frozen?.promise;
      if (request.headers.authorization !== `Basic ${token}`) {
        response.writeHead(401).end();
        return;
      }
      if (request.method === 'POST' && lies !== true) {
        isOn = request.url === '/on';
      }
      response.end(JSON.stringify({ relay: { ison: isOn } }));
    })();
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const origin = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const stop = async (): Promise<void> => {
    frozen?.resolve();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  return {
    controller: {
      webhook: {
        onURL: `${origin}/on`,
        offURL: `${origin}/off`,
        statusURL: `${origin}/status`,
        pattern: '"ison": ?(true|false)',
      },
    },
    freeze: async () => void (frozen = Promise.withResolvers()),
    thaw: async () => {
      frozen?.resolve();
      frozen = undefined;
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}

async function temporaryFolder(parts: AsyncDisposableStack): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-power-'));
  parts.defer(async () => await rm(folder, { recursive: true, force: true }));
  return folder;
}

interface Part {
  readonly stop: () => Promise<void>;
  readonly signal: (signal: NodeJS.Signals) => Promise<void>;
}

async function startPart(parts: AsyncDisposableStack, folder: string, plan: ProcessPlan): Promise<Part> {
  const record = await startProcess(folder, plan);
  const signal = async (name: NodeJS.Signals): Promise<void> => void (await signalProcess(record, name));
  const stop = async (): Promise<void> => {
    // A stopped process does not end.
    await signal('SIGCONT');
    await stopProcess(folder, record);
  };
  parts.defer(stop);
  return { stop, signal };
}

function processWorld(controller: ServerController, part: Part, parts: AsyncDisposableStack): PowerWorld {
  return {
    controller,
    freeze: async () => await part.signal('SIGSTOP'),
    thaw: async () => await part.signal('SIGCONT'),
    stop: part.stop,
    [Symbol.asyncDispose]: async () => await parts.disposeAsync(),
  };
}

async function certificate(
  authority: Authority,
  otherName: string | undefined,
): Promise<{ cert: string; key: string }> {
  const key = await createKey();
  const names = otherName === undefined ? { ipAddresses: ['127.0.0.1'] } : { dnsNames: [otherName] };
  const cert = await issue(authority, { key, commonName: 'controller', usages: ['server'], ...names });
  return { cert, key: key.pem };
}

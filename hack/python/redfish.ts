/**
 * The Redfish emulator of sushy-tools with its fake driver, which has systems without machines. It accepts a reset at once, and the power
 * changes 1 to 11 s later.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ProcessPlan } from '../cluster/processes.ts';
import { pythonWith } from './install.ts';

export interface EmulatedSystem {
  /** The last part of its path, `/redfish/v1/Systems/UUID`. */
  readonly uuid: string;
  readonly name: string;
  readonly power: 'On' | 'Off';
}

export interface RedfishEmulatorOptions {
  /** Folder of its configuration and state. It is created. */
  readonly folder: string;
  /** Port on 127.0.0.1. */
  readonly port: number;
  readonly systems: readonly EmulatedSystem[];
  readonly certificate: { readonly cert: string; readonly key: string };
  readonly username: string;
  /** bcrypt hash of the password. */
  readonly passwordHash: string;
  /** Further lines of the configuration, in Python. */
  readonly lines?: readonly string[];
}

/** Writes the files of an emulator and returns how to start it. The first call on a machine installs sushy-tools. */
export async function planRedfishEmulator(o: RedfishEmulatorOptions): Promise<ProcessPlan> {
  const { program, environment } = await pythonWith('sushy-tools');
  await mkdir(o.folder, { recursive: true });
  const write = async (name: string, content: string): Promise<string> => {
    const path = join(o.folder, name);
    await writeFile(path, content, { mode: 0o600 });
    return path;
  };
  const settings = {
    LISTEN_IP: '127.0.0.1',
    LISTEN_PORT: o.port,
    SSL_CERT: await write('redfish.crt', o.certificate.cert),
    SSL_KEY: await write('redfish.key', o.certificate.key),
    AUTH_FILE: await write('redfish.users', `${o.username}:${o.passwordHash}\n`),
    STATE_DIR: join(o.folder, 'redfish'),
    // 1 is true in Python.
    FAKE_DRIVER: 1,
    FAKE_SYSTEMS: o.systems.map(({ uuid, name, power }) => ({ uuid, name, power_state: power, nics: [] })),
  };
  // Strings, numbers, lists and objects have the same form in JSON and Python.
  const lines = Object.entries(settings).map(
    ([name, value]) => `SUSHY_EMULATOR_${name} = ${JSON.stringify(value)}`,
  );
  const config = await write('redfish.conf', [...lines, ...(o.lines ?? []), ''].join('\n'));
  return {
    name: 'redfish',
    file: program,
    arguments: ['-m', 'sushy_tools.emulator.main', '--config', config],
    environment,
  };
}

/** Runs the HTTP API in its own process, outside the cluster. Callers bring their own tokens. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createKey } from '../../kube/certificates/certificate.ts';
import { createAuthority, issue } from './authority.ts';
import { section } from './operator.ts';
import { freePorts } from './ports.ts';
import { type ProgramProcess, startProgram } from './program.ts';

export interface ServerOptions {
  config?: Record<string, unknown>;
  /** Name of the server's files. A second replica needs another name. */
  name?: string;
  environment?: Record<string, string>;
  /** Whether to run `dist/server.js`, which `make bundle` writes. */
  bundle?: boolean;
}

export interface ServerProcess {
  /** Base address, `https://127.0.0.1:PORT`. */
  readonly url: string;
  /** Base address of the power API. It listens only if the configuration enables it. */
  readonly powerUrl: string;
  /** Certificate of the authority that signed the server's certificate, as PEM. */
  readonly authority: string;
  readonly process: ProgramProcess;
}

/** Starts the server and resolves when it reports that it is ready. */
export async function startServer(
  directory: string,
  kubeconfig: string,
  { config, name = 'server', environment, bundle }: ServerOptions = {},
): Promise<ServerProcess> {
  const [port, powerPort, metricsPort, healthPort] = (await freePorts(4)) as [number, number, number, number];
  const authority = await createAuthority('berth-server-authority');
  const key = await createKey();
  const certificate = await issue(authority, {
    commonName: 'berth-server',
    key,
    ipAddresses: ['127.0.0.1'],
    usages: ['server'],
  });
  const files = {
    certificateFile: join(directory, `${name}.crt`),
    keyFile: join(directory, `${name}.key`),
  };
  writeFileSync(files.certificateFile, certificate);
  writeFileSync(files.keyFile, key.pem, { mode: 0o600 });
  const process = await startProgram(directory, {
    program: 'server',
    name,
    kubeconfig,
    config: {
      ...config,
      http: { address: `127.0.0.1:${port}`, ...files, ...section(config, 'http') },
      power: { address: `127.0.0.1:${powerPort}`, ...section(config, 'power') },
      metrics: { address: `127.0.0.1:${metricsPort}`, ...section(config, 'metrics') },
      health: { address: `127.0.0.1:${healthPort}`, ...section(config, 'health') },
    },
    metricsPort,
    healthPort,
    environment,
    bundle,
  });
  return {
    url: `https://127.0.0.1:${port}`,
    powerUrl: `https://127.0.0.1:${powerPort}`,
    authority: authority.certificate,
    process,
  };
}

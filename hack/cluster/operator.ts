/** Runs the operator in its own process, outside the cluster, with its ServiceAccount's rights. */
import { freePorts } from './ports.ts';
import { type ProgramProcess, startProgram } from './program.ts';

export interface OperatorOptions {
  config?: Record<string, unknown>;
  /** Name of the operator's files. A second replica needs another name. */
  name?: string;
  environment?: Record<string, string>;
  /** Whether to run `dist/operator.js`, which `make bundle` writes. */
  bundle?: boolean;
}

export type OperatorProcess = ProgramProcess;

/** Starts an operator and resolves when it reports that it is ready. */
export async function startOperator(
  directory: string,
  kubeconfig: string,
  { config, name = 'operator', environment, bundle }: OperatorOptions = {},
): Promise<OperatorProcess> {
  const [metricsPort, healthPort] = (await freePorts(2)) as [number, number];
  return await startProgram(directory, {
    program: 'operator',
    name,
    kubeconfig,
    config: {
      ...config,
      // Agents of tests have loopback addresses.
      hosts: { addressCIDRs: ['127.0.0.0/8', '10.0.0.0/8'], ...section(config, 'hosts') },
      metrics: { address: `127.0.0.1:${metricsPort}`, ...section(config, 'metrics') },
      health: { address: `127.0.0.1:${healthPort}`, ...section(config, 'health') },
    },
    metricsPort,
    healthPort,
    environment,
    bundle,
  });
}

/** Returns a section of a configuration, or an empty one. */
export function section(config: Record<string, unknown> | undefined, key: string): object {
  const value = config?.[key];
  return typeof value === 'object' && value !== null ? value : {};
}

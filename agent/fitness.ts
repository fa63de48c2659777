/** Finds out which drivers of VMs can run guests on this host. */
import type { Logger } from 'pino';
import { messageOf } from '../base/errors.ts';
import type { Accelerator, DriverOfVMs } from './drivers/driver.ts';
import type { HostDriver } from './drivers/hostdrivers.ts';
import { nativeArchitecture } from './node/facts.ts';
import type { AgentConfig } from './config.ts';

/** Error if this host cannot run the guests for which it is configured. The agent throws this error at start, before the first VM. */
export class HostUnfitError extends Error {
  override readonly name = 'HostUnfitError';
}

/**
 * Checks all drivers and returns them by name. The result also contains drivers that cannot run guests on this host, because such a driver
 * must remove its old machines.
 *
 * @throws HostUnfitError when no driver can run guests.
 */
export async function fitDrivers(
  config: Pick<AgentConfig, 'architecture'>,
  drivers: readonly DriverOfVMs[],
  logger: Logger,
): Promise<ReadonlyMap<string, HostDriver>> {
  const wanted = config.architecture ?? nativeArchitecture();
  const found = new Map<string, HostDriver>();
  const problems: string[] = [];
  for (const driver of drivers) {
    const accelerators = await tryProbe(driver, problems, logger);
    found.set(driver.name, { driver, accelerators });
    if (accelerators.length > 0 && !accelerators.some(({ architecture }) => architecture === wanted)) {
      const names = accelerators.map((one) => `${one.architecture} (${one.accelerator})`).join(', ');
      problems.push(`The driver ${driver.name} cannot run ${wanted} guests on this host, but only ${names}`);
    }
  }
  if (problems.length === drivers.length) {
    throw new HostUnfitError(problems.join('; '));
  }
  if (problems.length > 0) {
    logger.warn({ problems }, 'Some drivers cannot run machines on this host');
  }
  return found;
}

/**
 * Returns the accelerators that a driver can use on this host. If there are none, the list is empty, and the function adds the reason to
 * `problems`.
 */
async function tryProbe(
  driver: DriverOfVMs,
  problems: string[],
  logger: Logger,
): Promise<readonly Accelerator[]> {
  try {
    const accelerators = await driver.probe();
    if (accelerators.length === 0) {
      problems.push(`The driver ${driver.name} runs no guests on this host`);
    }
    return accelerators;
  } catch (error) {
    logger.error({ err: error, driver: driver.name }, 'The driver could not check this host');
    problems.push(`The driver ${driver.name} could not check this host: ${messageOf(error)}`);
    return [];
  }
}

/** Returns the runtime version of the Node in the form TYPE://VERSION, because tools expect this form. */
export function runtimeVersion(drivers: ReadonlyMap<string, HostDriver>): string {
  const [[name, { accelerators }] = ['', { accelerators: [] }]] = drivers;
  return `${name}://${accelerators.map(({ accelerator }) => accelerator).join('-')}`;
}

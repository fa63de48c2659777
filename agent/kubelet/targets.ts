/** Finds the machines to which callers of streams want to connect. */
import type { Duplex } from 'node:stream';
import { SCREEN_PORT } from '../../api/v1alpha1/names.ts';
import { HttpError } from '../../kube/serving/httpserver.ts';
import type { GuestCommand, GuestCommandResult } from '../drivers/driver.ts';
import { driverOf } from '../drivers/hostdrivers.ts';
import { connectGuest, SharedForwards } from './guestports.ts';
import { consoleSource, type ConsoleSources, type LogSource } from './logs.ts';
import { ownPod } from './lookup.ts';
import type { StreamRequest } from './streamrequest.ts';

/** Ways to connect to one running machine. All throw StreamRefused when the machine does not allow them. */
export interface StreamTarget {
  /** Connects to the serial console. Only one connection of a machine has input. */
  console(input: boolean): Promise<Duplex>;
  /** Connects to a TCP port of the guest, or to the screen. */
  port(port: number): Promise<Duplex>;
  execute(command: GuestCommand): Promise<GuestCommandResult>;
}

/** Function that returns the machine of a request. @throws HttpError 400 when it does not run on this host. */
export type StreamTargets = (request: StreamRequest) => StreamTarget;

/** Returns the access of callers to the machines of this host. */
export function machineAccess(sources: ConsoleSources): { logs: LogSource; streams: StreamTargets } {
  return { logs: consoleSource(sources), streams: streamTargets(sources) };
}

function streamTargets({ host, machines, podOf }: ConsoleSources): StreamTargets {
  const forwards = new SharedForwards();
  return (request) => {
    const { name, uid = '' } = ownPod(request, podOf).metadata;
    const record = host.records.get(uid);
    if (record === undefined) {
      throw new HttpError(400, `Pod ${name} is not a VM; only VMs have ${request.kind}`);
    }
    const { state, folder } = machines.runtime(record);
    if (state.kind !== 'running') {
      throw new HttpError(400, `VM ${name} is not running`);
    }
    const driver = driverOf(host, record);
    return {
      console: async (input) => await driver.connectConsole(folder, { input }),
      execute: async (command) => await driver.execute(folder, command),
      port: async (port) => {
        if (port === SCREEN_PORT) {
          return await driver.connectScreen(folder);
        }
        // The network assigned this address. An address that the guest reports could be an address of another machine.
        const address = await host.network.address(uid);
        return address === undefined
          ? await forwards.connect(`${uid}:${port}`, port, () => driver.forwardPort(folder, port))
          : await connectGuest(address, port, port);
      },
    };
  };
}

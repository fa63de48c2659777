/** Finds the machines to which callers of streams want to connect. */
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { ADB_PORT, SCREEN_PORT } from '../../api/v1alpha1/names.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import { StreamRefused } from '../drivers/driver.ts';
import { driverOfVM } from '../drivers/hostdrivers.ts';
import { consoleSource, type ConsoleSources, type LogSource } from './logs.ts';
import { ownPod } from './lookup.ts';
import { connectGuest, SharedForwards } from './streams/portforward.ts';
import type { StreamRequest } from './streams/streamrequest.ts';
import type { StreamTarget } from './streams/target.ts';

/** Messages for streams that an emulator refuses. The key is the kind of stream. */
const EMULATOR_REFUSALS: Readonly<Record<string, string>> = {
  attach: 'An emulator has no console to attach to. Read its log with `kubectl logs`',
  exec: `An emulator has no guest agent that runs commands. To run a command, forward port ${ADB_PORT} with \`kubectl port-forward\`, and use \`adb shell\``,
};

/** Function that returns the machine of a request. @throws HttpError 400 when the machine does not run on this host. */
export type StreamTargets = (request: StreamRequest) => StreamTarget;

/**
 * Function that finds the task of a request. The result is another function, which passes a caller's connection to this task.
 *
 * @throws HttpError 400 when the Pod is not on this host. The returned function throws HttpError 400 when the task does not wait for a
 * connection.
 */
export type Transfers = (request: StreamRequest) => (caller: Socket) => void;

/** Returns the functions that find the log, the streams or the task for a caller's request on this host. */
export function machineAccess(sources: ConsoleSources): {
  logs: LogSource;
  streams: StreamTargets;
  transfers: Transfers;
} {
  return { logs: consoleSource(sources), streams: streamTargets(sources), transfers: transfers(sources) };
}

function transfers({ tasks, podOf }: ConsoleSources): Transfers {
  return (request) => {
    const { name, uid = '' } = ownPod(request, podOf).metadata;
    return (caller) => {
      if (!tasks.connect(uid, caller)) {
        throw new HttpError(400, `Pod ${name} does not wait for a file`);
      }
    };
  };
}

function streamTargets({ host, machines, podOf }: ConsoleSources): StreamTargets {
  const forwards = new SharedForwards();
  return (request) => {
    const { name, uid = '' } = ownPod(request, podOf).metadata;
    const record = host.records.ofPod(uid);
    if (record === undefined) {
      throw new HttpError(
        400,
        `Pod ${name} is neither a VM nor an emulator, so it does not support ${request.kind}`,
      );
    }
    const isEmulator = record.emulator !== undefined;
    const refusal = isEmulator ? EMULATOR_REFUSALS[request.kind] : undefined;
    if (refusal !== undefined) {
      throw new HttpError(400, refusal);
    }
    const { state, folder } = machines.runtime(record);
    if (state.kind !== 'running') {
      throw new HttpError(400, `${isEmulator ? 'The emulator of Pod' : 'VM'} ${name} is not running`);
    }
    return {
      console: async (input) => await driverOfVM(host, record).connectConsole(folder, { input }),
      execute: async (command) => await driverOfVM(host, record).execute(folder, command),
      port: async (port) => {
        if (isEmulator) {
          return await connectAdb(await host.network.address(uid), port);
        }
        const driver = driverOfVM(host, record);
        if (port === SCREEN_PORT) {
          return await driver.connectScreen(folder);
        }
        // The agent uses the address that the network assigned, because an address that the guest reports could belong to another machine.
        const address = await host.network.address(uid);
        return address === undefined
          ? await forwards.connect(`${uid}:${port}`, port, () => driver.forwardPort(folder, port))
          : await connectGuest(address, port, port);
      },
    };
  };
}

/**
 * Connects to the ADB port of an emulator. The emulator's network allows connections to no other port. @throws StreamRefused for other
 * ports.
 */
async function connectAdb(address: string | undefined, port: number): Promise<Duplex> {
  if (port !== ADB_PORT) {
    throw new StreamRefused(
      `Port ${port} of the emulator cannot be reached. Only port ${ADB_PORT}, for ADB, can be reached`,
    );
  }
  if (address === undefined) {
    throw new StreamRefused('The emulator has no address yet');
  }
  return await connectGuest(address, port, port);
}

/** Makes the report about a machine. The agent writes this report into a condition of the Pod, where the operator reads it. */
import type { MachineReport } from '../../api/v1alpha1/machine.ts';
import { ADB_PORT } from '../../api/v1alpha1/names.ts';
import { lastWords, MESSAGE_LENGTH } from '../../kube/podstatus.ts';
import type { MachineRecord, Runtime } from './machine.ts';
import { holdsPorts } from './portclaims.ts';

/** Largest length of the message in the report, in characters. */
const REPORT_MESSAGE_LENGTH = 512;
/** Largest number of characters that JSON needs for one escaped character. */
const LONGEST_ESCAPE = 6;
/** Largest length of the message about the display, in characters. No message of the QEMU driver is longer. */
const DISPLAY_MESSAGE_LENGTH = 320;
/** Upper limit for the number of characters that the JSON key `message` takes in the report, with quotes and comma. */
const MESSAGE_KEY_LENGTH = 16;

interface ReportFacts extends Pick<MachineReport, 'message'> {
  accelerator: string | undefined;
  /** Hash of the wanted state that the machine fulfils. Undefined while the machine does not fulfil its wanted state. */
  desiredHash: string | undefined;
  /** Address of this host at which others reach the host ports that lead to machines. */
  forwardAddress: string;
}

/**
 * Returns the report. The function shortens the message so that the report fits into a condition. If the report itself were cut, the
 * operator could not parse it.
 */
export function reportOf(runtime: Readonly<Runtime>, { message, ...facts }: ReportFacts): MachineReport {
  const report = factsOf(runtime, facts);
  const room = MESSAGE_LENGTH - MESSAGE_KEY_LENGTH - JSON.stringify(report).length;
  const length = Math.max(2, Math.min(REPORT_MESSAGE_LENGTH, Math.floor(room / LONGEST_ESCAPE)));
  return { ...report, ...defined('message', message && lastWords(message, length)) };
}

function factsOf(
  runtime: Readonly<Runtime>,
  { accelerator, desiredHash, forwardAddress }: ReportFacts,
): MachineReport {
  const { record, operation, guest } = runtime;
  return {
    ...defined('desiredHash', desiredHash),
    ...defined('restartedAt', record.restartedAt),
    ...defined('revertedAt', record.revertedAt),
    ...defined('stops', record.emulator === undefined ? (record.stops ?? 0) : undefined),
    ...record.startedWith,
    ...defined('progressPercent', operation?.progressPercent),
    ...defined('bytesPerSecond', operation?.bytesPerSecond),
    ...defined('accelerator', accelerator),
    ...defined('imageDigest', record.base?.digest),
    ...defined('guestAgentConnected', guest?.connected),
    ...defined('guest', guest?.facts),
    ...defined('endpoints', chosenPorts(record)),
    ...displayReport(runtime),
    ...defined('adb', adbOf(runtime, forwardAddress)),
  };
}

/**
 * Returns the part of the report that describes the display. The message of this part contains only characters that JSON writes without an
 * escape, so that the machine's whole report is short.
 */
function displayReport({ state }: Pick<Runtime, 'state'>): Pick<MachineReport, 'display'> {
  const display = state.kind === 'running' ? state.display : undefined;
  if (display === undefined) {
    return {};
  }
  const message = display.message.replaceAll(/[^\w .,:;×'()/-]/g, '?').slice(0, DISPLAY_MESSAGE_LENGTH);
  return { display: { ...display, message } };
}

/**
 * Returns the address and port for ADB of a running emulator; undefined for VMs. `forwardAddress` is the host's address for connections to
 * host ports that lead to machines.
 */
function adbOf({ record, state, address }: Readonly<Runtime>, forwardAddress: string): MachineReport['adb'] {
  if (record.emulator === undefined || state.kind !== 'running') {
    return undefined;
  }
  if (record.emulator.exposure === 'PairedVM') {
    return address === undefined ? undefined : { address, port: ADB_PORT };
  }
  const port = record.automaticPorts.find(({ guestPort }) => guestPort === ADB_PORT)?.hostPort;
  return port === undefined ? undefined : { address: forwardAddress, port };
}

function chosenPorts(record: Readonly<MachineRecord>): number[] | undefined {
  const { automaticPorts } = record;
  const hasPorts = automaticPorts.length > 0 && holdsPorts(record);
  return hasPorts ? automaticPorts.map(({ hostPort }) => hostPort) : undefined;
}

function defined<K extends string, V>(key: K, value: V | undefined): Partial<Record<K, V>> {
  return value === undefined ? {} : ({ [key]: value } as Record<K, V>);
}

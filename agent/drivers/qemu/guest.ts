/**
 * Talks to the guest of a running QEMU machine through the guest agent: checks whether the guest agent answers, asks for facts about the
 * guest, runs commands, and sets the clock. A guest can report anything, so each value is checked.
 */
import type { Logger } from 'pino';
import * as z from 'zod';
import { type GuestFacts, guestHostNameSchema, guestOSSchema } from '../../../api/v1alpha1/machine.ts';
import type { JsonLimits } from '../../../base/json.ts';
import {
  type GuestAnswer,
  type GuestCommand,
  type GuestCommandResult,
  type GuestQuestion,
  StreamRefused,
} from '../driver.ts';
import { reachableAddresses } from '../guest.ts';
import { hasGuestAgent, setTime, thaw } from './guestagent.ts';
import { type CommandOptions, GuestAgentRefusal, type GuestConnection, JsonLine } from './guestconnection.ts';
import { executeInGuest } from './guestexec.ts';
import type { QemuMachine } from './machine.ts';
import { beginningOf } from './qmp.ts';

/**
 * Time limit of the guest agent's answer to a ping. A short limit is enough, because the guest agent has just answered another command over
 * the same connection.
 */
const PING_TIMEOUT_MILLISECONDS = 3_000;

/**
 * Time limit of each command that asks for facts. A guest agent answers in about 20 ms, or in tenths of a second if the guest is emulated
 * and busy.
 */
const ANSWER_TIMEOUT_MILLISECONDS = 5_000;

/**
 * Limits of the list of network interfaces. An interface with two addresses has about 25 items and 700 bytes. A guest with many containers
 * has up to 300 interfaces.
 */
const INTERFACES_LIMITS: JsonLimits = { bytes: 256 * 1024, items: 8_192 };

/** An address or interface that is malformed or null counts as one without an address, because the others can be right. */
const addressSchema = z.object({ 'ip-address': z.string() }).catch({ 'ip-address': '' });
const interfacesSchema = beginningOf(
  z.object({ 'ip-addresses': beginningOf(addressSchema).catch([]) }).catch({ 'ip-addresses': [] }),
);
const osSchema = z.object({ 'pretty-name': guestOSSchema });
const hostNameSchema = z.object({ 'host-name': guestHostNameSchema });

export class MachineGuest {
  readonly #machine: QemuMachine;
  readonly #logger: Logger;

  constructor(machine: QemuMachine, logger: Logger) {
    this.#machine = machine;
    this.#logger = logger;
  }

  async ask({ facts, signal }: GuestQuestion): Promise<GuestAnswer> {
    const hypervisor = this.#machine.watched;
    const qmp = await hypervisor?.qmp();
    if (hypervisor === undefined || qmp === undefined) {
      return { kind: 'silent' };
    }
    if ((await qmp.status()) !== 'running') {
      return { kind: 'busy' };
    }
    if (!(await hasGuestAgent(qmp))) {
      return { kind: 'silent' };
    }
    const answer = await hypervisor.guestAgent.ask(signal, async (connection, either) => {
      const options = { timeoutMilliseconds: PING_TIMEOUT_MILLISECONDS, signal: either };
      await connection?.execute('guest-ping', options);
      return connection && { facts: facts ? await readFacts(connection, either) : undefined };
    });
    if (answer === 'busy') {
      return { kind: 'busy' };
    }
    return answer === undefined ? { kind: 'silent' } : { kind: 'answers', ...answer };
  }

  async execute(command: GuestCommand): Promise<GuestCommandResult> {
    const hypervisor = this.#machine.watched;
    if (hypervisor === undefined) {
      throw new StreamRefused('The machine is not running');
    }
    return await executeInGuest(hypervisor.guestAgent, command);
  }

  /**
   * Sets the guest's clock to the host's time, because the clock stops while the guest is paused. Without a guest agent, the clock stays
   * wrong unless the guest itself corrects it. The promise never rejects.
   */
  async setTime(): Promise<void> {
    const hypervisor = this.#machine.watched;
    try {
      const qmp = await hypervisor?.qmp();
      if (hypervisor !== undefined && qmp !== undefined && (await hasGuestAgent(qmp))) {
        await hypervisor.guestAgent.use({}, setTime);
      }
    } catch (error) {
      this.#logger.warn({ uid: hypervisor?.folder.uid, err: error }, 'The clock of a guest was not set');
    }
  }

  /**
   * Lets the guest run its hooks for a thaw. The hooks of a save have run also in a guest without file systems that can freeze. The promise
   * never rejects.
   */
  async thaw(): Promise<void> {
    const hypervisor = this.#machine.watched;
    try {
      await (hypervisor && thaw(hypervisor.guestAgent));
    } catch (error) {
      this.#logger.warn({ uid: hypervisor?.folder.uid, err: error }, 'A guest did not confirm its thaw');
    }
  }
}

/**
 * Asks the guest agent for the guest's addresses, operating system and host name. Facts that the guest does not report correctly are left
 * out of the result. @throws Error when the guest agent does not answer in time.
 */
async function readFacts(connection: GuestConnection, signal: AbortSignal): Promise<GuestFacts> {
  const ask = async <T>(
    command: string,
    schema: z.ZodType<T>,
    options: Pick<CommandOptions, 'reader'> = {},
  ): Promise<T | undefined> =>
    schema.safeParse(await answerTo(connection, command, { ...options, signal })).data;
  const reader = () => new JsonLine(INTERFACES_LIMITS);
  const interfaces = await ask('guest-network-get-interfaces', interfacesSchema, { reader });
  const os = await ask('guest-get-osinfo', osSchema);
  const host = await ask('guest-get-host-name', hostNameSchema);
  return {
    addresses: reachableAddresses(
      (interfaces ?? []).flatMap((one) => one['ip-addresses'].map((it) => it['ip-address'])),
    ),
    ...(os && { os: os['pretty-name'] }),
    ...(host && { hostName: host['host-name'] }),
  };
}

/** Returns the guest agent's answer to a command; undefined if the guest agent does not know the command, or refuses it. */
async function answerTo(
  connection: GuestConnection,
  command: string,
  options: Pick<CommandOptions, 'reader' | 'signal'>,
): Promise<unknown> {
  try {
    return await connection.execute(command, {
      timeoutMilliseconds: ANSWER_TIMEOUT_MILLISECONDS,
      ...options,
    });
  } catch (error) {
    if (error instanceof GuestAgentRefusal) {
      return undefined;
    }
    throw error;
  }
}

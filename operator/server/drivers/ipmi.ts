/** IPMI 2.0 over LAN, through the program ipmitool. */
import {
  CIPHER_SUITES,
  IPMI_PORT,
  type PowerAction,
  type ServerController,
} from '../../../api/v1alpha1/server.ts';
import { isMissing } from '../../../base/errors.ts';
import { ProgramError, run } from '../../../base/exec.ts';
import { type Credentials, type Power, type PowerDriver, PowerError, quoteController } from './driver.ts';

/** Longest user name and password, in bytes, of IPMI 2.0. */
const USERNAME_BYTES = 16;
const PASSWORD_BYTES = 20;
/** ipmitool writes one line. */
const OUTPUT_BYTES = 64 * 1024;
/**
 * Seconds until ipmitool sends a packet again, and the number of tries. It waits one second longer after each try, and asks for the
 * capabilities of the controller in two ways. So it gives up a silent controller after 6 s, before the time limit of the call, and Berth
 * then knows that no command was sent.
 */
const RETRY = ['-N', '1', '-R', '2'];

const STATUS = /^Chassis Power is (on|off)$/m;
const ACCEPTED = {
  On: /^Chassis Power Control: Up\/On$/m,
  Off: /^Chassis Power Control: Down\/Off$/m,
};

/** Lines that ipmitool writes with `-v` in each session. They say nothing about the failure. */
const NOISE = /^(Loading IANA|IANA PEN|Running Get|Discovered|Get HPM|Invalid completion code)/;
/** The first are of a wrong password, a wrong name and a right that the user lacks. The last two are of controllers that check the password. */
const CREDENTIALS =
  /HMAC is invalid|unauthorized (name|role|GUID)|failed: Insufficient privilege|invalid (role|integrity check)/;
const SUITE = /invalid \w+ algorithm|cipher suite/;
const NO_SESSION = /Unable to establish|Could not open socket|Address lookup/;
/** The controller answered the command, and refused it. A completion code that means a time limit is no refusal. */
const COMMAND_REFUSED = /Set Chassis Power Control to \S+ failed: (?!Timeout)/;

type Settings = NonNullable<ServerController['ipmi']>;

export class IpmiDriver implements PowerDriver {
  // Off, its confirmation and On can be proven and repeated after a crash, other than a power cycle.
  readonly canReboot = false;
  readonly #settings: Settings;
  readonly #credentials: Credentials;
  readonly #limitMilliseconds: number;

  /** @throws PowerError with `CredentialsMissing` when the user name or the password is missing or not usable */
  constructor(settings: Settings, credentials: Credentials | undefined, limitMilliseconds: number) {
    if (credentials === undefined) {
      throw unusable('IPMI needs a user name and a password: set spec.controller.secretName');
    }
    requireFits('username', credentials.username, USERNAME_BYTES);
    requireFits('password', credentials.password, PASSWORD_BYTES);
    this.#settings = settings;
    this.#credentials = credentials;
    this.#limitMilliseconds = limitMilliseconds;
  }

  async read(): Promise<Power> {
    const output = await this.#run('status');
    const [, power] = STATUS.exec(output) ?? [];
    if (power === undefined) {
      throw this.#error('ControllerFailed', `ipmitool wrote "${output.trim()}" instead of the power`, true);
    }
    return power === 'on' ? 'On' : 'Off';
  }

  async send(command: PowerAction): Promise<void> {
    if (command === 'Reboot') {
      throw new RangeError('IPMI has no reboot that can be repeated');
    }
    const output = await this.#run(command === 'On' ? 'on' : 'off');
    if (!ACCEPTED[command].test(output)) {
      throw this.#error(
        'ControllerFailed',
        `ipmitool wrote "${output.trim()}" instead of an acceptance`,
        false,
      );
    }
  }

  async #run(verb: 'status' | 'on' | 'off'): Promise<string> {
    const { address, port = IPMI_PORT, cipherSuite = CIPHER_SUITES[0] } = this.#settings;
    const { username, password } = this.#credentials;
    // Every value is the argument of an option, so ipmitool takes none of them as an option, whatever its first character is.
    const target = ['-H', address, '-p', String(port), '-C', String(cipherSuite), '-U', username];
    // The right to switch the power is the operator's. `-E` reads the password from the environment. `-v` tells why there is no session.
    const session = ['-I', 'lanplus', '-L', 'OPERATOR', '-E', '-v', ...RETRY];
    try {
      return await run('ipmitool', [...session, ...target, 'chassis', 'power', verb], {
        timeoutMilliseconds: this.#limitMilliseconds,
        outputLimitBytes: OUTPUT_BYTES,
        environment: { PATH: process.env['PATH'], LC_ALL: 'C', IPMI_PASSWORD: password },
      });
    } catch (error) {
      throw error instanceof ProgramError ? this.#failure(error, verb === 'status') : error;
    }
  }

  #failure(error: ProgramError, isRead: boolean): PowerError {
    if (isMissing(error)) {
      const missing = 'the program ipmitool is not installed where the operator runs';
      return this.#error('ControllerFailed', missing, true);
    }
    if (error.exceeded === 'time') {
      const late = `no answer came within ${this.#limitMilliseconds / 1000} s`;
      return this.#error('ControllerUnreachable', late, isRead);
    }
    const lines = error.lastOutput.split('\n').map((line) => line.replace(/^(> |Error: )/, '').trim());
    const lastOutput = lines.filter((line) => line !== '' && !NOISE.test(line)).join('; ') || error.message;
    const isRefusal = isRead || NO_SESSION.test(lastOutput) || COMMAND_REFUSED.test(lastOutput);
    if (SUITE.test(lastOutput)) {
      const advice = 'another value of spec.controller.ipmi.cipherSuite may be needed';
      return this.#error('ControllerFailed', `${lastOutput}; ${advice}`, isRefusal);
    }
    return this.#error(reasonIn(lastOutput), lastOutput, isRefusal);
  }

  #error(reason: PowerError['reason'], lastOutput: string, isRefusal: boolean): PowerError {
    const { address, port = IPMI_PORT } = this.#settings;
    const text = quoteController(lastOutput, this.#credentials);
    return new PowerError(reason, `IPMI controller ${address}, port ${port}: ${text}`, { isRefusal });
  }
}

function reasonIn(lastOutput: string): PowerError['reason'] {
  if (CREDENTIALS.test(lastOutput)) {
    return 'CredentialsRefused';
  }
  return NO_SESSION.test(lastOutput) ? 'ControllerUnreachable' : 'ControllerFailed';
}

function requireFits(key: string, value: string, limitBytes: number): void {
  if (Buffer.byteLength(value) > limitBytes || /\p{Cc}/u.test(value)) {
    throw unusable(
      `The key ${key} of the Secret must have at most ${limitBytes} bytes and no control character, because IPMI takes no other`,
    );
  }
}

function unusable(message: string): PowerError {
  return new PowerError('CredentialsMissing', message, { isRefusal: true });
}

/** Controllers with URLs: smart plugs, power strips and programs of their owners. */
import { RE2JS, RE2JSException } from 're2js';
import type { PowerAction, ServerController } from '../../../api/v1alpha1/server.ts';
import {
  basicAuthorization,
  type Credentials,
  type Power,
  type PowerDriver,
  PowerError,
  quoteController,
} from './driver.ts';
import { HttpCall, type HttpAnswer, type HttpRequest, isSuccess, statusError } from './http.ts';

/** Bytes of the answer of the status URL in which the pattern is searched. */
const STATUS_BYTES = 64 * 1024;
/**
 * Largest size of a compiled pattern. `"state":\s*"(on|off)"` has 21. A search takes time in proportion to this size and to the length of
 * the answer: half a second in the worst case. A repetition such as `\pL{1000}` would have a much larger size.
 */
const PROGRAM_SIZE = 500;

const POWERS: ReadonlyMap<string, Power> = new Map([
  ['on', 'On'],
  ['true', 'On'],
  ['1', 'On'],
  ['off', 'Off'],
  ['false', 'Off'],
  ['0', 'Off'],
]);

type Settings = NonNullable<ServerController['webhook']>;
type Field = 'onURL' | 'offURL' | 'rebootURL' | 'statusURL';
const FIELDS = { On: 'onURL', Off: 'offURL', Reboot: 'rebootURL' } as const satisfies Record<
  PowerAction,
  Field
>;

export class WebhookDriver implements PowerDriver {
  readonly canReboot: boolean;
  readonly #settings: Settings;
  readonly #pattern: RE2JS;
  readonly #credentials: Credentials | undefined;
  readonly #authorization: string | undefined;
  readonly #limitMilliseconds: number;

  /** @throws PowerError with `ControllerInvalid` when a URL or the pattern is not usable */
  constructor(settings: Settings, credentials: Credentials | undefined, limitMilliseconds: number) {
    this.canReboot = settings.rebootURL !== undefined;
    this.#settings = settings;
    this.#pattern = compile(settings.pattern);
    this.#credentials = credentials;
    this.#authorization = credentials && basicAuthorization(credentials);
    this.#limitMilliseconds = limitMilliseconds;
    for (const field of ['onURL', 'offURL', 'rebootURL', 'statusURL'] as const) {
      requireUsable(field, settings[field], credentials !== undefined);
    }
  }

  async read(): Promise<Power> {
    const { body } = await this.#exchange('GET', 'statusURL');
    const matcher = this.#pattern.matcher(body.toString('utf8'));
    if (!matcher.find()) {
      throw unclear('does not match spec.controller.webhook.pattern');
    }
    const group = matcher.group(1) ?? '';
    const power = POWERS.get(group.toLowerCase());
    if (power === undefined) {
      const reported = quoteController(group, this.#credentials);
      const expected = [...POWERS.keys()].join(', ');
      throw unclear(
        `has "${reported}" in the first group of the pattern, and one of ${expected} was expected`,
      );
    }
    return power;
  }

  async send(command: PowerAction): Promise<void> {
    await this.#exchange('POST', FIELDS[command]);
  }

  async #exchange(method: 'GET' | 'POST', field: Field): Promise<HttpAnswer> {
    const url = new URL(this.#settings[field] ?? '');
    // The path and the query are not named, because they can contain a key of the webhook.
    const what = `${method} to spec.controller.webhook.${field} at ${url.origin}`;
    const request: HttpRequest = { method, path: url.pathname + url.search, what, limitBytes: STATUS_BYTES };
    await using http = new HttpCall({
      origin: url.origin,
      authorization: this.#authorization,
      limitMilliseconds: this.#limitMilliseconds,
    });
    const answer = await http.send(request);
    if (!isSuccess(answer.status)) {
      throw statusError(request, answer, '');
    }
    return answer;
  }
}

function requireUsable(field: Field, text: string | undefined, hasCredentials: boolean): void {
  if (text === undefined) {
    return;
  }
  const name = `spec.controller.webhook.${field}`;
  const url = URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol)) {
    throw invalid(`${name} must be a URL with https:// or http://`);
  }
  if (hasCredentials && url.protocol === 'http:') {
    throw invalid(
      `${name} begins with http://, but Berth sends credentials over https:// alone; correct it, or remove spec.controller.secretName`,
    );
  }
}

function compile(pattern: string): RE2JS {
  const name = 'spec.controller.webhook.pattern';
  let compiled: RE2JS;
  try {
    compiled = RE2JS.compile(pattern);
  } catch (error) {
    if (error instanceof RE2JSException) {
      throw invalid(`${name} is not a regular expression of RE2: ${error.message}`, error);
    }
    throw error;
  }
  if (compiled.groupCount() === 0) {
    throw invalid(
      `${name} has no group, and Berth reads the power from its first group, for example "(on|off)"`,
    );
  }
  if (compiled.programSize() > PROGRAM_SIZE) {
    throw invalid(
      `${name} is too complex: it has ${compiled.programSize()} steps, and at most ${PROGRAM_SIZE} are allowed`,
    );
  }
  return compiled;
}

function invalid(message: string, cause?: unknown): PowerError {
  return new PowerError('ControllerInvalid', message, { isRefusal: true, cause });
}

function unclear(message: string): PowerError {
  const subject = 'The answer of spec.controller.webhook.statusURL';
  return new PowerError('ControllerFailed', `${subject} ${message}`, { isRefusal: true });
}

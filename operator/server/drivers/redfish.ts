/** Redfish, the HTTPS and JSON API of the controllers of servers (DMTF DSP0266). */
import { X509Certificate } from 'node:crypto';
import * as z from 'zod';
import type { PowerAction, ServerController } from '../../../api/v1alpha1/server.ts';
import { JsonError, parseJson } from '../../../base/json.ts';
import {
  basicAuthorization,
  type Credentials,
  type Power,
  type PowerDriver,
  PowerError,
  quoteController,
} from './driver.ts';
import { HttpCall, type HttpAnswer, type HttpRequest, isSuccess, statusError } from './http.ts';

/** Largest answer that is read. Systems of real controllers have up to 50 KB. */
const ANSWER_BYTES = 1024 * 1024;
/** Real systems have less than 2,000 values. */
const ANSWER_ITEMS = 16_384;
const SYSTEMS = '/redfish/v1/Systems';
const RESET = '#ComputerSystem.Reset';

/** Power for each PowerState. A change that is not complete counts as not begun, because nothing is taken as done before it is. */
const POWERS: ReadonlyMap<unknown, Power> = new Map([
  ['On', 'On'],
  ['PoweringOff', 'On'],
  ['Off', 'Off'],
  ['PoweringOn', 'Off'],
]);

/** Reset types of each command, the best first. A push of the button is like a short push by hand: it asks the operating system to end. */
const PUSH = 'PushPowerButton';
const RESET_TYPES = { On: ['On', 'ForceOn'], Off: ['ForceOff', 'GracefulShutdown', PUSH] } as const;

const collectionSchema = z.object({ Members: z.array(z.object({ '@odata.id': z.string() })) });
const powerSchema = z.object({ PowerState: z.unknown().optional() });
const systemSchema = z.object({
  PowerState: z.unknown().optional(),
  Actions: z
    .object({
      [RESET]: z
        .object({
          target: z.string().nullish(),
          'ResetType@Redfish.AllowableValues': z.array(z.string()).nullish(),
          '@Redfish.ActionInfo': z.string().nullish(),
        })
        .nullish(),
    })
    .nullish(),
});
const actionInfoSchema = z.object({
  Parameters: z.array(z.object({ Name: z.string(), AllowableValues: z.array(z.string()).nullish() })),
});
const errorSchema = z.object({
  error: z.object({
    message: z.string().optional().catch(undefined),
    '@Message.ExtendedInfo': z
      .array(z.object({ Message: z.string().optional().catch(undefined) }))
      .optional()
      .catch(undefined),
  }),
});

type Settings = NonNullable<ServerController['redfish']>;

export class RedfishDriver implements PowerDriver {
  // Off, its confirmation and On can be proven and repeated after a crash, other than ForceRestart.
  readonly canReboot = false;
  readonly #settings: Settings;
  readonly #origin: string;
  readonly #credentials: Credentials | undefined;
  readonly #authorization: string | undefined;
  readonly #limitMilliseconds: number;

  /** @throws PowerError with `ControllerInvalid` when the endpoint or the authority is not usable */
  constructor(settings: Settings, credentials: Credentials | undefined, limitMilliseconds: number) {
    this.#settings = settings;
    this.#origin = originOf(settings.endpoint);
    this.#credentials = credentials;
    this.#authorization = credentials && basicAuthorization(credentials);
    this.#limitMilliseconds = limitMilliseconds;
    requireCertificates(settings.authority);
  }

  async read(): Promise<Power> {
    await using http = this.#call();
    const { PowerState: state } = await this.#get(http, await this.#systemPath(http), powerSchema);
    const power = POWERS.get(state);
    if (power === undefined) {
      const reported = state === undefined ? 'is missing' : `is ${this.#quote(JSON.stringify(state))}`;
      const expected = `one of ${[...POWERS.keys()].join(', ')} was expected`;
      throw failed(`PowerState of the system at ${this.#origin} ${reported}; ${expected}`);
    }
    return power;
  }

  async send(command: PowerAction): Promise<void> {
    if (command === 'Reboot') {
      throw new RangeError('Redfish has no reboot that can be repeated');
    }
    await using http = this.#call();
    const systemPath = await this.#systemPath(http);
    const system = await this.#get(http, systemPath, systemSchema);
    const action = system.Actions?.[RESET] ?? {};
    const allowed =
      action['ResetType@Redfish.AllowableValues'] ??
      (await this.#allowedByInfo(http, action['@Redfish.ActionInfo']));
    const type = this.#resetType(command, allowed);
    if (type === PUSH && system.PowerState !== 'On') {
      // The button would switch the server on again.
      return;
    }
    const path = this.#pathOf(
      action.target ?? `${systemPath}/Actions/ComputerSystem.Reset`,
      'the target of Reset',
    );
    const body = JSON.stringify({ ResetType: type });
    await this.#exchange(http, 'POST', path, body);
  }

  #call(): HttpCall {
    const { authority, insecureSkipVerify } = this.#settings;
    return new HttpCall({
      origin: this.#origin,
      authorization: this.#authorization,
      limitMilliseconds: this.#limitMilliseconds,
      authority,
      insecureSkipVerify,
    });
  }

  async #systemPath(http: HttpCall): Promise<string> {
    const { systemPath } = this.#settings;
    if (systemPath !== undefined) {
      return this.#pathOf(systemPath, 'spec.controller.redfish.systemPath');
    }
    const { Members: members } = await this.#get(http, SYSTEMS, collectionSchema);
    const [only] = members;
    if (only === undefined) {
      throw failed(`The controller at ${this.#origin} has no systems`);
    }
    if (members.length > 1) {
      throw new PowerError(
        'ControllerInvalid',
        `The controller at ${this.#origin} has ${members.length} systems; set spec.controller.redfish.systemPath to the path of one of them`,
        { isRefusal: true },
      );
    }
    return this.#pathOf(only['@odata.id'], 'the path of the system');
  }

  async #allowedByInfo(
    http: HttpCall,
    info: string | null | undefined,
  ): Promise<string[] | null | undefined> {
    if (info === null || info === undefined) {
      return undefined;
    }
    const path = this.#pathOf(info, '@Redfish.ActionInfo');
    const { Parameters: parameters } = await this.#get(http, path, actionInfoSchema);
    return parameters.find(({ Name: name }) => name === 'ResetType')?.AllowableValues;
  }

  /** If the controller does not list its reset types, it has the first one of the command: every controller has On and ForceOff. */
  #resetType(command: 'On' | 'Off', allowed: readonly string[] | null | undefined): string {
    const types: readonly string[] = RESET_TYPES[command];
    const type = types.find((one) => allowed?.includes(one) ?? true);
    if (type === undefined) {
      const reported = this.#quote(allowed?.join(', ') ?? '');
      throw failed(
        `The controller at ${this.#origin} has no reset type for ${command}: it allows "${reported}", and ${types.join(' or ')} is needed`,
      );
    }
    return type;
  }

  /** Returns the path of a link. A link to another server is refused, because Berth would send it the password. */
  #pathOf(link: string, what: string): string {
    const url = URL.parse(link, this.#origin);
    if (url?.origin !== this.#origin) {
      throw failed(`${what} is "${this.#quote(link)}", but it must be a path at ${this.#origin}`);
    }
    return url.pathname + url.search;
  }

  async #get<T>(http: HttpCall, path: string, schema: z.ZodType<T>): Promise<T> {
    const { body, isCut } = await this.#exchange(http, 'GET', path);
    const what = `The answer to GET ${this.#quote(path)} at ${this.#origin}`;
    if (isCut) {
      throw failed(`${what} is larger than ${ANSWER_BYTES} bytes`);
    }
    const { data, error } = schema.safeParse(parseAnswer(body, what));
    if (error !== undefined) {
      const [issue] = error.issues;
      const where = issue === undefined || issue.path.length === 0 ? '' : `${issue.path.join('.')}: `;
      throw failed(`${what} is not valid: ${where}${issue?.message}`);
    }
    return data;
  }

  async #exchange(http: HttpCall, method: 'GET' | 'POST', path: string, body?: string): Promise<HttpAnswer> {
    const content = body === undefined ? {} : { body };
    const type = body === undefined ? {} : { 'content-type': 'application/json' };
    const request: HttpRequest = {
      method,
      path,
      what: `${method} ${this.#quote(path)} at ${this.#origin}`,
      headers: { accept: 'application/json', 'odata-version': '4.0', ...type },
      limitBytes: ANSWER_BYTES,
      ...content,
    };
    const answer = await http.send(request);
    if (!isSuccess(answer.status)) {
      throw statusError(request, answer, this.#quote(formatDetails(answer)));
    }
    return answer;
  }

  #quote(text: string): string {
    return quoteController(text, this.#credentials);
  }
}

/** Error before a command was sent. */
function failed(message: string): PowerError {
  return new PowerError('ControllerFailed', message, { isRefusal: true });
}

function originOf(endpoint: string): string {
  const url = URL.parse(endpoint);
  if (url?.protocol !== 'https:' || url.pathname !== '/' || url.search !== '' || url.hash !== '') {
    throw new PowerError(
      'ControllerInvalid',
      `spec.controller.redfish.endpoint is ${endpoint}, but it must be https://, a host and perhaps a port, without a path`,
      { isRefusal: true },
    );
  }
  return url.origin;
}

function requireCertificates(authority: string | undefined): void {
  try {
    for (const [certificate] of authority?.matchAll(
      /-----BEGIN CERTIFICATE-----[^-]*(-----END CERTIFICATE-----)?/g,
    ) ?? []) {
      void new X509Certificate(certificate);
    }
  } catch (cause) {
    throw new PowerError(
      'ControllerInvalid',
      'spec.controller.redfish.authority has a certificate that cannot be read',
      { isRefusal: true, cause },
    );
  }
}

function parseAnswer(body: Buffer, what: string): unknown {
  try {
    return parseJson(body, { bytes: ANSWER_BYTES, items: ANSWER_ITEMS });
  } catch (error) {
    if (error instanceof JsonError) {
      throw failed(`${what} ${error.message}`);
    }
    throw error;
  }
}

/** Returns the text of an error of Redfish. Most controllers have a general text in `message`, and the cause in the other field. */
function formatDetails({ body, isCut }: HttpAnswer): string {
  if (isCut) {
    return '';
  }
  let document: unknown;
  try {
    document = parseJson(body, { bytes: ANSWER_BYTES, items: ANSWER_ITEMS });
  } catch (error) {
    if (error instanceof JsonError) {
      return '';
    }
    throw error;
  }
  const { data } = errorSchema.safeParse(document);
  const infos = data?.error['@Message.ExtendedInfo']?.map(({ Message: message }) => message ?? '') ?? [];
  return infos.filter((message) => message !== '').join(' ') || (data?.error.message ?? '');
}

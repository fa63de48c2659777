/** Finds out who sent a request to the power API, and what the caller may do. */
import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { LRUCache } from 'lru-cache';
import type { Logger } from 'pino';
import { GROUP } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import {
  parseServerUsers,
  SERVER_USERS_KEY,
  SERVER_USERS_SECRET,
  type ServerUsers,
} from '../../api/v1alpha1/serverusers.ts';
import { undefinedIfSync } from '../../base/errors.ts';
import type { Authorizer, User } from '../../kube/serving/authorization.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import { tokenOf } from '../callers/caller.ts';
import type { Passwords } from './passwords.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Secret, SECRETS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';

/** Number of tokens that are remembered as accepted ones, and time in milliseconds since their last use. */
const ACCEPTED_TOKENS = 4_096;
const ACCEPTED_MILLISECONDS = 3_600_000;

/** Caller of a request. */
export interface PowerCaller {
  /** Name with which actions are recorded. */
  readonly name: string;
  /** User of the cluster. It is absent for a user with a password, who may list and read all Servers and request actions. */
  readonly user?: User;
}

/** Error when the credentials of a request are wrong. It counts as a failed sign-in. */
export class SignInError extends HttpError {
  override readonly name = 'SignInError';

  constructor() {
    super(401, 'Unauthorized');
  }
}

export interface PowerCallersOptions {
  /** Two authorizers, so that invented tokens do not delay the callers whose tokens are known. */
  readonly authorizers: { readonly known: Authorizer; readonly strangers: Authorizer };
  readonly passwords: Passwords;
  readonly users: { readonly hashes: ServerUsers['hashes'] };
}

export class PowerCallers {
  readonly #o: PowerCallersOptions;
  /** Hashes of tokens that the API server accepted. This only decides in which queue a token is checked again. */
  readonly #accepted = new LRUCache<string, true>({
    max: ACCEPTED_TOKENS,
    ttl: ACCEPTED_MILLISECONDS,
    updateAgeOnGet: true,
  });

  constructor(o: PowerCallersOptions) {
    this.#o = o;
  }

  /**
   * Returns the caller of a request. `isWanted` tells later whether the answer is still needed.
   *
   * @throws SignInError when the credentials are wrong; HttpError 401 when there are none, 503 or 429 when too many callers are being
   * checked; Error when the API server does not answer.
   */
  async identify(
    { headers: { authorization = '' } }: Pick<IncomingMessage, 'headers'>,
    source: string,
    isWanted: () => boolean,
  ): Promise<PowerCaller> {
    if (authorization === '') {
      throw new HttpError(401, 'Unauthorized');
    }
    const basic = /^Basic +([A-Za-z0-9+/]+={0,2}) *$/i.exec(authorization)?.[1];
    if (basic === undefined) {
      return await this.#userOfToken(authorization);
    }
    const { name, password } = parseBasic(basic);
    const hash = this.#o.users.hashes.get(name);
    if (!(await this.#o.passwords.check({ name, password, source }, hash, isWanted))) {
      throw new SignInError();
    }
    return { name: `${SERVER_USERS_SECRET}/${name}` };
  }

  /** Checks a right of the caller. `name` is the name of the Server, if the right is only for this one. @throws HttpError 403 */
  async require(
    { name: caller, user }: PowerCaller,
    right: { verb: 'list' | 'get' | 'create'; subresource?: 'power'; name?: string },
  ): Promise<void> {
    if (user === undefined) {
      return;
    }
    const resourceAttributes = { group: GROUP, resource: SERVERS.plural, ...right };
    if (!(await this.#o.authorizers.known.authorize(user, { resourceAttributes }))) {
      const { verb, subresource } = right;
      const resource = subresource === undefined ? SERVERS.plural : `${SERVERS.plural}/${subresource}`;
      throw new HttpError(403, `User ${caller} has no right to ${verb} ${resource} of the group ${GROUP}`);
    }
  }

  async #userOfToken(authorization: string): Promise<PowerCaller> {
    const token = undefinedIfSync(
      (error) => error instanceof HttpError,
      () => tokenOf({ authorization }),
    );
    if (token === undefined) {
      throw new SignInError();
    }
    const { known, strangers } = this.#o.authorizers;
    const hash = createHash('sha256').update(token).digest('base64');
    const user = await (this.#accepted.get(hash) === true ? known : strangers).authenticate(token);
    if (user === undefined) {
      throw new SignInError();
    }
    this.#accepted.set(hash, true);
    return { name: user.username ?? '', user };
  }
}

/** Reads the credentials of RFC 7617. @throws SignInError when they are malformed. */
function parseBasic(base64: string): { name: string; password: string } {
  const text = undefinedIfSync(
    (error) => error instanceof TypeError,
    () => new TextDecoder('utf-8', { fatal: true }).decode(Buffer.from(base64, 'base64')),
  );
  const colon = text?.indexOf(':') ?? -1;
  if (text === undefined || colon === -1) {
    throw new SignInError();
  }
  return { name: text.slice(0, colon), password: text.slice(colon + 1) };
}

/** Number of wrong lines that are logged. */
const LOGGED_LINES = 10;

interface PasswordUsersOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** Namespace of the Secret. */
  readonly namespace: string;
}

export class PasswordUsers {
  readonly #informer: Informer<Secret>;
  readonly #logger: Logger;
  #hashes: ServerUsers['hashes'] = new Map();

  constructor({ client, logger, namespace }: PasswordUsersOptions) {
    this.#logger = logger;
    this.#informer = new Informer(client, SECRETS, {
      logger,
      namespace,
      fieldSelector: `metadata.name=${SERVER_USERS_SECRET}`,
    });
    this.#informer.cache.onChange(({ type, object }) => this.#read(type === 'deleted' ? undefined : object));
  }

  /** Starts to watch the Secret. Resolves when the users are known, also if there is no Secret. */
  async start(signal: AbortSignal): Promise<void> {
    this.#informer.start(signal);
    await this.#informer.synced;
  }

  /** Hashes of the passwords by the names of the users. */
  get hashes(): ServerUsers['hashes'] {
    return this.#hashes;
  }

  #read(secret: Readonly<Secret> | undefined): void {
    const text = Buffer.from(secret?.data?.[SERVER_USERS_KEY] ?? '', 'base64').toString('utf8');
    const { hashes, wrong } = parseServerUsers(text);
    this.#hashes = hashes;
    if (wrong.length > 0) {
      this.#logger.warn(
        { secret: SERVER_USERS_SECRET, wrong: wrong.slice(0, LOGGED_LINES), count: wrong.length },
        'some lines of the users of the power API are not valid',
      );
    }
  }
}

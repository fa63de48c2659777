/** Watches the Secret with the users of the power API that have a password. */
import type { Logger } from 'pino';
import {
  parseServerUsers,
  SERVER_USERS_KEY,
  SERVER_USERS_SECRET,
  type ServerUsers,
} from '../../api/v1alpha1/serverusers.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Secret, SECRETS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';

/** Number of wrong lines that are logged. */
const LOGGED_LINES = 10;

export interface PasswordUsersOptions {
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

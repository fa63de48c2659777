/** Reads the credentials of controllers from Secrets of the system namespace. */
import { LRUCache } from 'lru-cache';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { KubeClient } from '../../kube/client.ts';
import { SECRETS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { type Credentials, PowerError } from './drivers/driver.ts';

/** Only Secrets of this type are used, so that a Server cannot send the content of another Secret to a controller. */
const SECRET_TYPE = 'kubernetes.io/basic-auth';
/** Time in milliseconds for which a working Secret is not read again. */
const KEPT_MILLISECONDS = 300_000;
/** Largest number of Secrets that are kept. */
const KEPT = 4_096;

export class ControllerSecrets {
  readonly #client: KubeClient;
  readonly #namespace: string;
  readonly #known = new LRUCache<string, Credentials>({ max: KEPT, ttl: KEPT_MILLISECONDS });

  constructor(client: KubeClient, namespace: string) {
    this.#client = client;
    this.#namespace = namespace;
  }

  /**
   * Returns the credentials for the controller of a Server. The result is undefined if the Server names no Secret.
   * @throws PowerError when the Secret is missing or not usable
   * @throws ApiError when the Secret cannot be read
   */
  async of({ spec: { controller } }: Pick<Server, 'spec'>): Promise<Credentials | undefined> {
    const { secretName: name } = controller;
    if (name === undefined) {
      return undefined;
    }
    const known = this.#known.get(name);
    if (known !== undefined) {
      return known;
    }
    const read = await this.#read(name);
    this.#known.set(name, read);
    return read;
  }

  /** Forgets the Secret of a Server, because its controller refused a call. Perhaps the Secret has changed. */
  forget({ spec: { controller } }: Pick<Server, 'spec'>): void {
    this.#known.delete(controller.secretName ?? '');
  }

  async #read(name: string): Promise<Credentials> {
    const namespace = this.#namespace;
    const secret = await unlessMissing(this.#client.get(SECRETS, { namespace, name }));
    if (secret === undefined) {
      throw missing(`spec.controller.secretName: namespace ${namespace} has no Secret ${name}`);
    }
    if (secret.type !== SECRET_TYPE) {
      throw missing(`spec.controller.secretName: Secret ${name} must have the type ${SECRET_TYPE}`);
    }
    const { username, password } = secret.data ?? {};
    if (username === undefined || password === undefined) {
      throw missing(`spec.controller.secretName: Secret ${name} must have the keys username and password`);
    }
    return { username: decode(username), password: decode(password) };
  }
}

function decode(base64: string): string {
  return Buffer.from(base64, 'base64').toString('utf8');
}

function missing(message: string): PowerError {
  return new PowerError('CredentialsMissing', message, { isRefusal: true });
}

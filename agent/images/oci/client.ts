/** The registries that images come from and go to: distribution specification 1.1, over one pool of connections. */
import type { Credential } from './credentials.ts';
import type { Reference } from '../../../api/v1alpha1/reference.ts';
import { HttpRepository } from './repository.ts';
import { Session } from './session.ts';
import { Tokens } from './tokens.ts';
import { type RegistriesOptions, Transport } from './transport.ts';
import type { Repository } from './types.ts';

export class Registries {
  /** The one pool of connections, also to other servers that images come from. */
  readonly transport: Transport;
  readonly #tokens: Tokens;

  /** @throws Error when the file of an authority cannot be read. */
  constructor(options: RegistriesOptions) {
    this.transport = new Transport(options);
    this.#tokens = new Tokens(this.transport);
  }

  /** Only the names of the reference count; each method is told a tag or digest. Nothing is asked yet. */
  repository(
    reference: Pick<Reference, 'registry' | 'repository'>,
    credential: Credential | undefined,
  ): Repository {
    return new HttpRepository(
      new Session(reference, credential, { transport: this.transport, tokens: this.#tokens }),
    );
  }

  /** Requests that are under way fail. */
  async close(): Promise<void> {
    await this.transport.close();
  }
}

export type { RegistriesOptions, RegistrySettings } from './transport.ts';

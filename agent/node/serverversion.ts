/** Finds out the version of the API server, which limits the version that this host's Node reports. */
import * as z from 'zod';
import type { Logger } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';

/** Time in milliseconds between two questions. An upgrade of the control plane takes longer. */
const LOOK_MILLISECONDS = 5 * 60_000;

const answerSchema = z.object({ gitVersion: z.string().max(128) });

export interface ServerVersionOptions {
  readonly client: KubeClient;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
  readonly logger: Logger;
}

export class ServerVersionLook {
  readonly #options: ServerVersionOptions;
  #version: string | undefined;
  #askAt = 0;

  constructor(options: ServerVersionOptions) {
    this.#options = options;
  }

  /**
   * Returns the version of the API server, or undefined if the API server does not tell it.
   * @throws Error when the API server cannot be reached
   */
  async look(): Promise<string | undefined> {
    const { client, clock, logger } = this.#options;
    if (clock() < this.#askAt) {
      return this.#version;
    }
    try {
      this.#version = answerSchema.parse((await client.call('GET', '/version')).body).gitVersion;
    } catch (error) {
      // An administrator can forbid this question. The Node then reports the version of this release.
      if (!(error instanceof ApiError || error instanceof z.ZodError)) {
        throw error;
      }
      logger.warn({ err: error }, 'The API server does not tell its version');
    }
    this.#askAt = clock() + LOOK_MILLISECONDS;
    return this.#version;
  }
}

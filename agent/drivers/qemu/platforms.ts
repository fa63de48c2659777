/** What this host can run: looked at when it is first asked for, since trying takes seconds. */
import type { Logger } from 'pino';
import { StartError } from '../driver.ts';
import type { Architecture, Platform } from './platform.ts';
import { probePlatforms } from './hostplatforms.ts';

export interface PlatformsOptions {
  dataDirectory: string;
  logger: Logger;
  /** Of machines that name none; the machine's own when absent. */
  architecture?: Architecture | undefined;
}

export class Platforms {
  readonly #options: PlatformsOptions;
  #found: Promise<Platform[]> | undefined;

  constructor(options: PlatformsOptions) {
    this.#options = options;
  }

  async all(): Promise<Platform[]> {
    const { dataDirectory, logger } = this.#options;
    this.#found ??= probePlatforms({ dataDirectory, logger });
    return await this.#found;
  }

  /** @throws StartError when the host cannot run it. */
  async of(architecture: Architecture | undefined): Promise<Platform> {
    const native = this.#options.architecture ?? (process.arch === 'arm64' ? 'arm64' : 'amd64');
    const wanted = architecture ?? native;
    const platform = (await this.all()).find((candidate) => candidate.architecture === wanted);
    if (platform === undefined) {
      throw new StartError('StartFailed', `this host cannot run ${wanted} guests with qemu`);
    }
    return platform;
  }
}

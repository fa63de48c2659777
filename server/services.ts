/** Parts of the server that the handlers of routes use. */
import type { ServerConfig } from './config.ts';

export interface Services {
  readonly config: ServerConfig;
}

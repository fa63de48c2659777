/** What a guest wrote to its serial console: bounded, rotated, with the time at which it was seen. */
export interface ConsoleReadOptions {
  follow?: boolean;
  tailLines?: number;
  sinceTime?: Date;
  limitBytes?: number;
  timestamps?: boolean;
  /** Ends a follow. */
  signal?: AbortSignal;
}

export interface ConsoleLog {
  read(options: ConsoleReadOptions): AsyncIterable<string>;
}

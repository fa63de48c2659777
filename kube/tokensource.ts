/** Gives the token that a connection sends: a fixed token, the content of a file, or a token of a credential plug-in. */
import { readFile } from 'node:fs/promises';
import type { Connection } from './credentials.ts';

/** Interval in milliseconds between two reads of a token file. client-go has the same interval. */
const TOKEN_REREAD_MILLISECONDS = 60_000;

export class TokenSource {
  readonly #connection: Pick<Connection, 'token' | 'tokenFile' | 'tokenPlugin'>;
  #read: { token: string; at: number } | undefined;
  /** Whether the API server refused the last token of the plug-in. */
  #isRefused = false;

  constructor(connection: Pick<Connection, 'token' | 'tokenFile' | 'tokenPlugin'>) {
    this.#connection = connection;
  }

  /**
   * Resolves with the token, or with undefined if the connection has none.
   *
   * @throws CredentialError of the plug-in, or the system's error when the token file cannot be read.
   */
  async token(): Promise<string | undefined> {
    const { tokenFile, tokenPlugin, token } = this.#connection;
    if (tokenPlugin !== undefined) {
      const isRefused = this.#isRefused;
      this.#isRefused = false;
      return await tokenPlugin(isRefused);
    }
    if (tokenFile === undefined) {
      return token;
    }
    const now = performance.now();
    if (this.#read === undefined || now - this.#read.at > TOKEN_REREAD_MILLISECONDS) {
      this.#read = { token: (await readFile(tokenFile, 'utf8')).trim(), at: now };
    }
    return this.#read.token;
  }

  /** Forgets the token, because the API server refused it. Returns whether the next token can be a different one. */
  refuse(): boolean {
    const { tokenFile, tokenPlugin } = this.#connection;
    this.#read = undefined;
    this.#isRefused = tokenPlugin !== undefined;
    return tokenFile !== undefined || this.#isRefused;
  }
}

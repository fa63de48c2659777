/** Gives the token that a connection sends: a fixed token, the content of a file, or a token of a credential plug-in. */
import { readFile } from 'node:fs/promises';
import { messageOf } from '../base/errors.ts';
import type { Connection } from './credentials.ts';
import { CredentialError } from './errors.ts';

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
   * @throws CredentialError when the plug-in or the token file gives no token.
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
      this.#read = { token: await this.#readFrom(tokenFile), at: now };
    }
    return this.#read.token;
  }

  /**
   * Returns the token in the file. Another program might be writing the file just now. So if the file has no token, the last token is used
   * until the API server refuses it, as in client-go.
   */
  async #readFrom(file: string): Promise<string> {
    const last = this.#read?.token;
    try {
      const token = (await readFile(file, 'utf8')).trim();
      if (token !== '') {
        return token;
      }
    } catch (error) {
      if (last === undefined) {
        throw new CredentialError(`The token file ${file} cannot be read: ${messageOf(error)}`);
      }
    }
    if (last === undefined) {
      throw new CredentialError(`The token file ${file} is empty`);
    }
    return last;
  }

  /** Forgets the token, because the API server refused it. Returns whether the next token can be a different one. */
  refuse(): boolean {
    const { tokenFile, tokenPlugin } = this.#connection;
    this.#read = undefined;
    this.#isRefused = tokenPlugin !== undefined;
    return tokenFile !== undefined || this.#isRefused;
  }
}

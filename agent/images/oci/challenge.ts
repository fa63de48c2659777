/** Reads the header `WWW-Authenticate`, in which a server requests credentials (RFC 9110, 11.6.1). */

export interface Challenge {
  /** Name of the scheme in lower case: `basic`, `bearer`. */
  scheme: string;
  /**
   * Values of the parameters. The keys are the names of the parameters in lower case. If a name occurs twice, the map contains the first
   * value.
   */
  parameters: ReadonlyMap<string, string>;
}

const SCHEME = /[\w!#$%&'*+.^`|~-]+(?=[ \t,]|$)/y;
const TOKEN = /[\w!#$%&'*+.^`|~-]+/y;
const SPACE = /[ \t]*/y;
const SEPARATORS = /[ \t,]*/y;
const EQUALS = /[ \t]*=[ \t]*/y;
const QUOTED = /"((?:[^"\\]|\\.)*)"/y;
/** Pattern of the single value that some schemes, such as Negotiate, have in place of parameters. */
const TOKEN68 = /[\w.~+/-]+=*(?=[ \t]*(?:,|$))/y;

/**
 * Returns the challenges of all headers. One header can contain several challenges. If a part of a header cannot be read, the function
 * ignores the rest of this header.
 */
export function parseChallenges(header: string | string[] | undefined): Challenge[] {
  if (header === undefined) {
    return [];
  }
  return (typeof header === 'string' ? [header] : header).flatMap((text) => new Reader(text).challenges());
}

class Reader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  challenges(): Challenge[] {
    const found: Challenge[] = [];
    for (;;) {
      this.#take(SEPARATORS);
      const scheme = this.#take(SCHEME)?.[0];
      if (scheme === undefined) {
        return found;
      }
      this.#take(SPACE);
      found.push({ scheme: scheme.toLowerCase(), parameters: this.#parameters() });
    }
  }

  #parameters(): Map<string, string> {
    const parameters = new Map<string, string>();
    for (;;) {
      const before = this.#at;
      this.#take(SEPARATORS);
      const parameter = this.#parameter();
      if (parameter === undefined) {
        this.#at = before;
        if (parameters.size === 0) {
          this.#take(TOKEN68);
        }
        return parameters;
      }
      const [name, value] = parameter;
      if (!parameters.has(name)) {
        parameters.set(name, value);
      }
    }
  }

  /** Reads one `name=value`. Returns undefined for a name without a value, because this name is the scheme of the next challenge. */
  #parameter(): [string, string] | undefined {
    const name = this.#take(TOKEN)?.[0].toLowerCase();
    if (name === undefined || this.#take(EQUALS) === undefined) {
      return undefined;
    }
    const quoted = this.#take(QUOTED)?.[1];
    if (quoted !== undefined) {
      return [name, quoted.replace(/\\(.)/g, '$1')];
    }
    const value = this.#take(TOKEN)?.[0];
    return value === undefined ? undefined : [name, value];
  }

  #take(pattern: RegExp): RegExpExecArray | undefined {
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#text) ?? undefined;
    if (match !== undefined) {
      this.#at = pattern.lastIndex;
    }
    return match;
  }
}

/** Reads the header `WWW-Authenticate`, in which a server requests credentials (RFC 9110, 11.6.1). */

export interface Challenge {
  /** Name of the scheme in lower case: `basic`, `bearer`. */
  scheme: string;
  /**
   * Values of the parameters. The keys are the names of the parameters in lower case. If a name occurs twice, the map contains the first
   * value.
   */
  parameters: Map<string, string>;
}

const TOKEN = String.raw`[\w!#$%&'*+.^\`|~-]+`;
const PARAMETER = String.raw`(?<name>${TOKEN})[ \t]*=[ \t]*(?:"(?<quoted>(?:[^"\\]|\\.)*)"|(?<plain>${TOKEN}))`;
/** Single value that some schemes, such as Negotiate, have in place of parameters. */
const TOKEN68 = String.raw`[\w.~+/-]+=*(?=[ \t]*(?:,|$))`;
const SCHEME = String.raw`(?<scheme>${TOKEN})(?=[ \t,]|$)(?:[ \t]+${TOKEN68})?`;
/** Next part of a header: a parameter, or the beginning of a challenge. A name without a value is the scheme of the next challenge. */
const PART = new RegExp(String.raw`[ \t,]*(?:${PARAMETER}|${SCHEME})`, 'gy');

/**
 * Returns the challenges of all headers. One header can contain several challenges. If a part of a header cannot be read, the function
 * ignores the rest of this header.
 */
export function parseChallenges(header: string | string[] = []): Challenge[] {
  return [header].flat().flatMap(challengesIn);
}

function challengesIn(header: string): Challenge[] {
  const challenges: Challenge[] = [];
  for (const { groups = {} } of header.matchAll(PART)) {
    const { scheme } = groups;
    if (scheme === undefined) {
      addParameter(groups, challenges.at(-1)?.parameters);
    } else {
      challenges.push({ scheme: scheme.toLowerCase(), parameters: new Map() });
    }
  }
  return challenges;
}

function addParameter(
  { name = '', quoted, plain = '' }: Readonly<Record<string, string>>,
  parameters: Map<string, string> | undefined,
): void {
  const key = name.toLowerCase();
  if (parameters?.has(key) === false) {
    parameters.set(key, quoted?.replace(/\\(.)/g, '$1') ?? plain);
  }
}

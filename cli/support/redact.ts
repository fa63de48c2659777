/**
 * Removes secrets from the content of a support bundle. Fields that might hold a secret lose their whole value. These values are
 * remembered, and they are also removed from texts of other objects and from logs. Everything that looks like a secret is removed from all
 * texts.
 */

export const REMOVED = '[removed]';

/**
 * Fields that are removed, because their whole content comes from users, or can be a secret. The command never reads Secrets. If a list
 * contains a Secret nevertheless, the field `data` of the Secret is removed.
 */
const REMOVED_FIELDS: ReadonlySet<string> = new Set([
  'userData',
  'guestMetadata',
  'data',
  'stringData',
  'binaryData',
  'description',
  'headers',
  'args',
  'command',
  'annotations',
  'managedFields',
]);
/** Fields that are removed, but whose values are not remembered. These fields repeat names and other harmless values of the object. */
const REPEATING_FIELDS: ReadonlySet<string> = new Set([
  'annotations',
  'args',
  'command',
  'managedFields',
  'description',
]);
/**
 * Pattern of the labels that Berth, Helm or Kubernetes sets. The values of all other labels come from users. A value such as a version or
 * the name of a Job must stay, because texts that repeat a removed value lose it, too.
 */
const KEPT_LABEL =
  /^(?:[\w.-]{1,200}\.)?(?:berth\.dev|helm\.sh|kubernetes\.io)\/|^(?:pod-template-hash|controller-revision-hash|controller-uid|job-name)$/;
const SECRET_FIELD = /(passw(or)?d|passphrase|secret|token|credential|api_?key|private_?key|authorization)$/i;

/**
 * Smallest lengths of remembered values: {@link WORD_LENGTH} for values without a digit, {@link MIXED_LENGTH} for values with a digit.
 * Shorter values are often ordinary words in logs.
 */
const WORD_LENGTH = 8;
const MIXED_LENGTH = 6;
/** Largest number of remembered values. A namespace full of user data must not fill the memory. */
const REMEMBERED = 100_000;
/** Depth in an object below which everything is removed. Objects of Kubernetes are less deep. */
const DEPTH = 40;
const PART = /[^\s"'`=:,;/?&@()[\]{}<>\\|]+/g;
/**
 * Pattern for punctuation marks at the end of a word. If the word is a secret value, the marks can belong to the sentence around the value,
 * and not to the value itself. The pattern limits the number of marks, so that the time of a match is linear in the length of the text.
 */
const MARKS = /[.!…#*~^-]{1,3}$/;

/** Pattern for the name of a field or flag whose value is a secret: a word such as `password`, and the rest of the name. */
const KEY = String.raw`(?:passw(?:or)?d|pwd|passphrase|(?<![a-z])pass(?![a-z])|secret|token|credential|api[-_]?key|access[-_]?key|private[-_]?key|key-data|signature)[\w.-]{0,128}`;

/**
 * Pattern for a value in double quotes. Quotes inside the value are escaped. If the value is in JSON inside of JSON, the quotes around the
 * value are escaped, too: the opening quote and the closing quote have the same number of backslashes.
 */
const QUOTED = String.raw`"(?:[^"\\]|\\[\s\S])*(?:"|$)|(?<escape>\\{1,15})"[\s\S]*?(?<!\\)\k<escape>"`;

/**
 * Patterns of secrets, in the order in which they are applied. A hostile host could write a log that makes a slow pattern run for a very
 * long time. Therefore the time for each pattern must be linear in the length of the text: if two adjacent repetitions in a pattern can
 * match the same characters, one of them has a limit.
 */
const FORMS: readonly (readonly [RegExp, string])[] = [
  [
    /-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|$)/g,
    REMOVED,
  ],
  // A log without its earlier lines can begin within a key.
  [
    /^(?:[ \t]{0,64}[\w+/=]{1,128}\r?\n){0,512}[ \t]{0,64}-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----/,
    REMOVED,
  ],
  [
    /\b((?:proxy-)?authorization|(?:set-)?cookie)(\\?["']?\s*[:=]\s*\\?["']?)[^\r\n"'\\]+/gi,
    `$1$2${REMOVED}`,
  ],
  // This pattern removes the credentials of registries from configuration files of Docker.
  [/(["']auth\\*["']\s*:\s*\\*["'])[^"'\\]+/g, `$1${REMOVED}`],
  [/\b(bearer|basic)\s+[\w.~+/=-]{6,}/gi, `$1 ${REMOVED}`],
  [/\beyJ[\w-]{5,}(?:\.[\w-]*)*/g, REMOVED],
  [/([a-z][a-z0-9+.-]{0,30}:\/\/)[^\s/"'<>]+@/gi, `$1${REMOVED}@`],
  [/(?<![\w.+-])[\w.+-]{1,100}:[^\s/@"'<>:]{3,200}@(?!sha256:)(?=[\w[])/g, `${REMOVED}@`],
  [/(?<=[\w/])\?[^\s"'<>\\]{3,}/g, `?${REMOVED}`],
  [new RegExp(String.raw`(?<!-)(--[\w.-]{0,128}${KEY})[ =]+[^\s"']+`, 'gi'), `$1=${REMOVED}`],
  [
    new RegExp(
      String.raw`(${KEY})(\\*["']?\s*(?:=>|[=:])\s*)(?![\s[{])(?:${QUOTED}|\\*'[^']*'|[^\s,;&"'}\\]+)`,
      'gi',
    ),
    `$1$2${REMOVED}`,
  ],
  [/\b(password|passwd|passphrase|token|secret)\s+(?:is\s+|was\s+)?(?=\S*\d)\S+/gi, `$1 ${REMOVED}`],
  [/\b[a-z0-9]{6}\.[a-z0-9]{16}\b/g, REMOVED],
  [/(?<!sha256:|[0-9a-f-])[0-9a-f]{32,}(?![0-9a-f-])/g, REMOVED],
  [/(?<![\w+=-])(?=[\w+=-]*[a-z])(?=[\w+=-]*[A-Z])(?=[\w+=-]*\d)[\w+=-]{16,}/g, REMOVED],
];

export class Redactor {
  readonly #values = new Set<string>();

  /**
   * Returns a copy of the object without the values of fields that can hold secrets, and remembers these values. All other texts stay as
   * they are.
   */
  fields(value: unknown, depth = 0): unknown {
    if (typeof value !== 'object' || value === null) {
      return value;
    }
    if (depth > DEPTH) {
      return REMOVED;
    }
    if (Array.isArray(value)) {
      return value.map((item) => this.fields(item, depth + 1));
    }
    const entries = Object.entries(value).map(([key, field]) => [key, this.#field(key, field, depth)]);
    return Object.fromEntries(entries) as unknown;
  }

  #field(key: string, value: unknown, depth: number): unknown {
    if (value === undefined || value === null) {
      return value;
    }
    if (REMOVED_FIELDS.has(key) || (SECRET_FIELD.test(key) && typeof value === 'string')) {
      this.#remember(value, key);
      return REMOVED;
    }
    if (key === 'labels' || key === 'matchLabels') {
      return this.#labels(value);
    }
    if (key === 'env' && Array.isArray(value)) {
      this.#remember(
        value.map((entry: { value?: unknown }) => entry?.value),
        key,
      );
      return value.map((entry: { name?: unknown }) => ({ name: entry?.name }));
    }
    return this.fields(value, depth + 1);
  }

  #labels(labels: unknown): unknown {
    const entries = Object.entries(labels as Record<string, unknown>).map(([key, value]) => {
      if (KEPT_LABEL.test(key)) {
        return [key, value];
      }
      this.#remember(value, key);
      return [key, REMOVED];
    });
    return Object.fromEntries(entries) as unknown;
  }

  #remember(value: unknown, key: string): void {
    if (typeof value === 'object' && value !== null) {
      for (const item of Object.values(value)) {
        this.#remember(item, key);
      }
    } else if (typeof value === 'string' && !REPEATING_FIELDS.has(key)) {
      for (const part of secretParts(value)) {
        if (this.#values.size < REMEMBERED) {
          this.#values.add(part);
        }
      }
    }
  }

  /** Returns the text without secrets. Removes everything that looks like a secret, and all remembered values. */
  text(text: string): string {
    const formless = FORMS.reduce((kept, [form, instead]) => kept.replace(form, instead), text);
    return formless.replace(PART, (part) =>
      formsOf(part).some((form) => this.#values.has(form)) ? REMOVED : part,
    );
  }

  /** Returns a copy of the object with redacted texts. */
  texts(value: unknown): unknown {
    if (typeof value === 'string') {
      return this.text(value);
    }
    if (Array.isArray(value)) {
      return value.map((item) => this.texts(item));
    }
    if (typeof value !== 'object' || value === null) {
      return value;
    }
    return Object.fromEntries(
      Object.entries(value).map(([key, field]) => [this.text(key), this.texts(field)]),
    ) as unknown;
  }
}

/** Returns the parts of a removed value that logs could repeat. Common words of a longer text are not among them. */
function secretParts(value: string): string[] {
  const segments = value.match(PART) ?? [];
  const least = segments.length === 1 ? WORD_LENGTH : Infinity;
  return segments.flatMap(formsOf).filter((part) => part.length >= (/\d/.test(part) ? MIXED_LENGTH : least));
}

/** Returns two forms of a part of a text: the whole part, and the part without punctuation marks at its end. */
function formsOf(part: string): string[] {
  return [part, part.replace(MARKS, '')];
}

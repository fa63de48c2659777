/**
 * Refuses fields of a body and parameters of a query that the server does not know. If the server ignored them, a misspelt limit would be
 * lost without a word.
 */
import { similarTo } from '../../base/similar.ts';
import { type FieldMistake, invalidFields } from './errors.ts';

/** Largest number of unknown fields that an answer names. There is a limit, because a hostile body can have thousands of them. */
const NAMED = 3;
/** An answer shows at most this number of characters from the name of a field that the client sent. */
const NAME_LENGTH = 100;

/**
 * Collects mistakes in the names of the fields of a body, or of the parameters of a query. Only the first mistakes are kept, and the others
 * are counted.
 */
export class FieldNames {
  readonly #noun: 'field' | 'query parameter';
  readonly #mistakes: FieldMistake[] = [];
  #count = 0;
  /** Sentence with the known fields. It is empty if each unknown field is similar to a known field. */
  #known = '';

  constructor(noun: 'field' | 'query parameter' = 'field') {
    this.#noun = noun;
  }

  /** Number of mistakes. */
  get count(): number {
    return this.#count;
  }

  /**
   * Adds an unknown field. `path` is the path of the object that has the field, and it is empty for the body. `known` has the names of the
   * object's fields.
   */
  unknown(path: string, name: string, known: () => readonly string[]): void {
    this.#add(path, name, () => {
      const names = known();
      const similar = similarField(name, names);
      const message = `is not a known ${this.#noun}`;
      if (similar === undefined) {
        this.#known ||= sentenceOf(`${this.#noun}s${path === '' ? '' : ` of ${path}`}`, names);
        return message;
      }
      return `${message} (did you mean ${similar}?)`;
    });
  }

  /** Adds a field that the object at `path` has in several spellings. Only one of their values could have an effect. */
  repeated(path: string, name: string): void {
    this.#add(path, name, () => 'is given more than once, in different letter case');
  }

  /** Adds the mistakes of another part of the body. */
  addAll(others: FieldNames): void {
    this.#mistakes.push(...others.#mistakes.slice(0, NAMED - this.#mistakes.length));
    this.#count += others.#count;
    this.#known ||= others.#known;
  }

  /** @throws StatusError 422 if there is a mistake. */
  refuse(): void {
    if (this.#count === 0) {
      return;
    }
    const rest = this.#count - this.#mistakes.length;
    const more = rest === 0 ? '' : `${rest} more wrong ${rest === 1 ? 'name' : 'names'}`;
    throw invalidFields(this.#mistakes, [more, this.#known].filter((part) => part !== '').join('. '));
  }

  #add(path: string, name: string, message: () => string): void {
    this.#count += 1;
    if (this.#mistakes.length < NAMED) {
      this.#mistakes.push({ field: pathOf(path, shortened(name)), message: message() });
    }
  }
}

/** Returns the path of a field. `path` is the path of the object that has the field, and it is empty for the body. */
export function pathOf(path: string, name: string): string {
  return path === '' ? name : `${path}.${name}`;
}

/** Returns the name of a field as an answer shows it. */
function shortened(name: string): string {
  return name.length <= NAME_LENGTH ? name || '""' : `${name.slice(0, NAME_LENGTH)}…`;
}

function sentenceOf(subject: string, names: readonly string[]): string {
  return names.length === 0 ? `There are no ${subject}` : `The known ${subject} are ${names.join(', ')}`;
}

/** Returns the known name that is most similar. Letter case counts for parameters of a query, but it makes no name less similar. */
function similarField(name: string, known: readonly string[]): string | undefined {
  const similar = similarTo(
    name.toLowerCase(),
    known.map((one) => one.toLowerCase()),
  );
  return known.find((one) => one.toLowerCase() === similar);
}

/**
 * Refuses a query that has other parameters than the `known` ones.
 *
 * @throws StatusError 422 with their names.
 */
export function refuseUnknownParameters(query: object, known: readonly string[]): void {
  const names = new FieldNames('query parameter');
  for (const name of Object.keys(query).filter((one) => !known.includes(one))) {
    names.unknown('', name, () => known);
  }
  names.refuse();
}

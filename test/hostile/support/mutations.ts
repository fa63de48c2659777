/** Small changes to DER and PEM, which a lenient reader would still accept. */
import { type Arbitrary, array, constantFrom, nat, record } from 'fast-check';
import { encode, readElements } from '../../../kube/certificates/request.ts';

interface Tree {
  tag: number;
  parts: Tree[] | undefined;
  content: Buffer;
  /** Form in which the length is written. */
  length: 'short' | 'long' | 'indefinite';
}

const CHANGES = [
  'duplicate',
  'remove',
  'swap',
  'retag',
  'long',
  'indefinite',
  'append',
  'flip',
  'move',
] as const;
const WRAPPINGS = [
  'as it is',
  'line before',
  'text before',
  'twice',
  'header',
  'spaces',
  'CRLF',
  'no padding',
] as const;
const CONSTRUCTED = 0x20;
const OCTET_STRING = 0x04;

export interface Mutation {
  /** Number of the request to change. */
  base: number;
  changes: readonly { kind: (typeof CHANGES)[number]; at: number; byte: number }[];
  /** Bytes that are changed after the signing. */
  flips: readonly { at: number; byte: number }[];
  wrapping: (typeof WRAPPINGS)[number];
}

/** About a third of the mutations changes the form of the signed part. The others also change the signature or the text around it. */
export const mutations: Arbitrary<Mutation> = record({
  base: nat(),
  changes: array(record({ kind: constantFrom(...CHANGES), at: nat(), byte: nat(255) }), {
    maxLength: 2,
    size: 'max',
  }),
  flips: array(record({ at: nat(), byte: nat(255) }), { maxLength: 1, size: 'small' }),
  wrapping: constantFrom('as it is' as const, 'as it is' as const, ...WRAPPINGS),
});

/** Returns the kind of a mutation, for the count. */
export function kindOf({ changes, flips, wrapping }: Mutation): string {
  const parts = [
    ...(changes.length === 0 ? [] : ['changed parts']),
    ...(flips.length === 0 ? [] : ['changed bytes']),
    ...(wrapping === 'as it is' ? [] : ['changed text']),
  ];
  return parts.join(' and ') || 'nothing changed';
}

/** Applies the changes to the parts of the DER, one after the other. */
export function changeParts(der: Buffer, changes: Mutation['changes']): Buffer {
  const trees = treesOf(der) ?? [];
  for (const change of changes) {
    const places = placesOf(trees);
    const place = places[change.at % places.length];
    if (place !== undefined) {
      apply(change, place.siblings, place.index);
    }
  }
  return Buffer.concat(trees.map(write));
}

export function flip(bytes: Buffer, flips: Mutation['flips']): Buffer {
  const changed = Buffer.from(bytes);
  for (const { at, byte } of flips) {
    changed[at % changed.length] = byte;
  }
  return changed;
}

export function wrap(pem: string, wrapping: Mutation['wrapping'], other: string): string {
  switch (wrapping) {
    case 'line before':
      return `text\n${pem}`;
    case 'text before':
      return `text ${pem}${other}`;
    case 'twice':
      return `${pem}${other}`;
    case 'header':
      return pem.replace('\n', '\nA: b\n\n');
    case 'spaces':
      return pem.replace('\n', ' \n').replace('M', ' M');
    case 'CRLF':
      return pem.replaceAll('\n', '\r\n');
    case 'no padding':
      return pem.replace('=', '');
    default:
      return pem;
  }
}

function treesOf(der: Buffer): Tree[] | undefined {
  try {
    return readElements(der).map(({ tag, content }) => {
      const isNested = (tag & CONSTRUCTED) !== 0 || tag === OCTET_STRING;
      return { tag, content, parts: isNested ? treesOf(content) : undefined, length: 'short' as const };
    });
  } catch {
    // Not every octet string contains DER.
    return undefined;
  }
}

function placesOf(siblings: Tree[]): { siblings: Tree[]; index: number }[] {
  return siblings.flatMap((tree, index) => [{ siblings, index }, ...placesOf(tree.parts ?? [])]);
}

function apply({ kind, at, byte }: Mutation['changes'][number], siblings: Tree[], index: number): void {
  const tree = siblings[index];
  if (tree === undefined) {
    return;
  }
  switch (kind) {
    case 'duplicate':
      siblings.splice(index, 0, structuredClone(tree));
      break;
    case 'remove':
      siblings.splice(index, 1);
      break;
    case 'swap':
      siblings.splice(index, 1);
      siblings.splice(index + 1, 0, tree);
      break;
    case 'move':
      siblings.splice(index, 1);
      siblings.unshift(tree);
      break;
    case 'retag':
      tree.tag = byte;
      break;
    case 'append':
      siblings.push({
        tag: byte & ~CONSTRUCTED,
        parts: undefined,
        content: Buffer.from([byte]),
        length: 'short',
      });
      break;
    case 'flip':
      tree.content = flip(tree.content, tree.content.length === 0 ? [] : [{ at, byte }]);
      tree.parts &&= treesOf(tree.content);
      break;
    default:
      tree.length = kind;
  }
}

function write({ tag, parts, content, length }: Tree): Buffer {
  const inner = parts === undefined ? Buffer.from(content) : Buffer.concat(parts.map(write));
  switch (length) {
    case 'long': {
      const size = Buffer.alloc(2);
      size.writeUInt16BE(inner.length);
      return Buffer.concat([Buffer.from([tag, 0x82]), size, inner]);
    }
    case 'indefinite':
      return Buffer.concat([Buffer.from([tag, 0x80]), inner, Buffer.alloc(2)]);
    default:
      return encode(tag, inner);
  }
}

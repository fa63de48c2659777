/**
 * Fields with data for the guest: user data, metadata and SSH keys. An annotation of the VM's Pod contains these fields as JSON text. All
 * annotations of an object together have at most 256 KiB in UTF-8. The metadata has at most 128 KiB, the user data 64 KiB and the keys 32
 * KiB. So 32 KiB remain for the other fields of the machine.
 */
import * as z from 'zod';
import { USER_DATA_SECRET_TYPE } from './names.ts';
import { documented, objectName, text } from './schema.ts';

const KIBIBYTE = 1024;

/**
 * Part of a pattern: the refused control characters. Tab, line feed and carriage return are allowed. All others are refused, because guests
 * cannot read them in YAML. Also, JSON needs six bytes for each of them.
 */
const CONTROL = String.raw`\x00-\x08\x0b\x0c\x0e-\x1f\x7f`;
const TEXT = new RegExp(`^[^${CONTROL}]*$`);
const NO_CONTROL = 'must not contain control characters except tab, line feed and carriage return';
/** CEL rule: a text must not contain a character of {@link CONTROL}. */
const TEXT_RULE = { rule: `!self.matches(r'[${CONTROL}]')`, message: NO_CONTROL };

/** Largest length of `userData`, in characters. */
const USER_DATA_LENGTH = 16 * KIBIBYTE;
export const userDataSchema = z
  .string()
  .min(1)
  .max(USER_DATA_LENGTH)
  .refine((value) => TEXT.test(value), { error: NO_CONTROL })
  .meta(
    documented(
      `Data for the guest’s first boot, for example a cloud-config or an Ignition config, at most ${USER_DATA_LENGTH} characters. Use userDataSecretRef for passwords.`,
      TEXT_RULE,
    ),
  );

export const userDataSecretSchema = z
  .object({
    name: objectName(`Name of a Secret of type ${USER_DATA_SECRET_TYPE} in the namespace of the VM.`),
    key: text(
      'Key of an entry in the Secret. The entry is a text of at most 65536 bytes.',
      253,
      /^[-._a-zA-Z0-9]+$/,
    ),
  })
  .meta({
    description: `Secret of type ${USER_DATA_SECRET_TYPE} with data that the guest uses at its first boot. The host reads the Secret at each start of the machine. The machine does not start until the Secret exists.`,
  });

/** Keys of the metadata that every guest gets. Users must not set these keys in `guestMetadata`. */
export const STANDARD_METADATA = [
  'id',
  'name',
  'namespace',
  'host',
  'image',
  'cpu',
  'memory',
  'display',
] as const;

const METADATA_ENTRIES = 64;
const METADATA_VALUE_LENGTH = 32 * KIBIBYTE;
const METADATA_JSON_BYTES = 128 * KIBIBYTE;
const METADATA_KEY = /^[-._a-zA-Z0-9]{1,253}$/;
const KEYS = 'keys of guestMetadata must have 1 to 253 letters, digits, dots, dashes and underscores';
const NO_STANDARD_KEY = `guestMetadata must not have the keys ${STANDARD_METADATA.join(', ')}, which every guest has`;
const TOO_MUCH_METADATA = `guestMetadata must have at most ${METADATA_JSON_BYTES} bytes as JSON text`;
/**
 * CEL expression for the number of bytes that one entry of `guestMetadata` needs in JSON text. `strings.quote` adds the same characters to
 * a value as JSON: two quotes, and one character for each escape. A key needs no escapes. The 4 stands for the two quotes of the key, the
 * colon and the comma.
 */
const ENTRY_BYTES = 'k.size() + 4 + bytes(self[k]).size() + strings.quote(self[k]).size() - self[k].size()';

export const guestMetadataSchema = z
  .record(
    z.string(),
    z
      .string()
      .max(METADATA_VALUE_LENGTH)
      .refine((value) => TEXT.test(value), { error: NO_CONTROL })
      .meta(documented('Value for the guest.', TEXT_RULE)),
  )
  .refine((values) => Object.keys(values).every((key) => METADATA_KEY.test(key)), { error: KEYS })
  .meta({
    ...documented(
      `Values for the guest: at most ${METADATA_ENTRIES} values of at most ${METADATA_VALUE_LENGTH} characters each. As JSON text, all values together have at most ${METADATA_JSON_BYTES} bytes. Every guest also has the values ${STANDARD_METADATA.join(', ')}.`,
      { rule: `self.all(key, key.matches('${METADATA_KEY.source}'))`, message: KEYS },
      { rule: `!self.exists(key, key in ['${STANDARD_METADATA.join("','")}'])`, message: NO_STANDARD_KEY },
      { rule: `self.map(k, ${ENTRY_BYTES}).sum() < ${METADATA_JSON_BYTES}`, message: TOO_MUCH_METADATA },
    ),
    maxProperties: METADATA_ENTRIES,
  });

/** Types of public keys that OpenSSH accepts. `ssh-dss` is missing, because OpenSSH no longer accepts it. */
const KEY_TYPES = [
  'ssh-ed25519',
  'ssh-rsa',
  'ecdsa-sha2-nistp256',
  'ecdsa-sha2-nistp384',
  'ecdsa-sha2-nistp521',
  'sk-ssh-ed25519@openssh.com',
  'sk-ecdsa-sha2-nistp256@openssh.com',
];

/**
 * Returns a pattern for the start of a public key of this type: the name of the type, a space, and the first base64 characters of the key.
 * These characters are the same for all keys of a type, because a binary key begins with the length and the name of its type.
 */
function typedKey(type: string): string {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(type.length);
  const start = Buffer.concat([length, Buffer.from(type)]);
  // Base64 encodes three bytes together. The last one or two bytes of the type's name can be encoded together with bytes after the name.
  // The pattern leaves out such bytes, because their characters are not the same for all keys.
  const known = start.subarray(0, start.length - (start.length % 3)).toString('base64');
  return `${type.replaceAll('.', '[.]')} ${known}`;
}

const SSH_KEY_PATTERN = `^(${KEY_TYPES.map(typedKey).join('|')})[A-Za-z0-9+/]{20,}={0,2}( [ -~]*)?$`;
const SSH_KEY = new RegExp(SSH_KEY_PATTERN);
const SSH_KEYS = 32;
/**
 * Largest length of one key in characters. The longest RSA key from OpenSSH (16384 bits) has 2772 characters. The limit leaves room for a
 * comment after the key.
 */
const SSH_KEY_LENGTH = 3 * KIBIBYTE;
const SSH_KEYS_JSON_BYTES = 32 * KIBIBYTE;
const SSH_KEY_FORM =
  'must be one line of an OpenSSH public key file, without options, of type ssh-ed25519, ssh-rsa, ecdsa or sk';
const TOO_MANY_KEY_BYTES = `sshAuthorizedKeys must have at most ${SSH_KEYS_JSON_BYTES} bytes in all`;

/** Returns true if the text is one public key, as a VM takes it. */
export function isSSHKey(text: string): boolean {
  return text.length <= SSH_KEY_LENGTH && SSH_KEY.test(text);
}

export const sshAuthorizedKeysSchema = z
  .array(
    z
      .string()
      .max(SSH_KEY_LENGTH)
      .refine((key) => SSH_KEY.test(key), { error: SSH_KEY_FORM })
      .meta(
        documented('One line of an OpenSSH public key file, without options.', {
          rule: `self.matches('${SSH_KEY_PATTERN}')`,
          message: SSH_KEY_FORM,
        }),
      ),
  )
  .max(SSH_KEYS)
  .meta({
    ...documented(
      `OpenSSH public keys with which users can log in, at most ${SSH_KEYS}. The guest accepts these keys for its default user and for root. If a VM has this list, the list of its VMConfig is not used.`,
      {
        rule: `self.map(k, strings.quote(k).size() + 1).sum() <= ${SSH_KEYS_JSON_BYTES}`,
        message: TOO_MANY_KEY_BYTES,
      },
    ),
    'x-kubernetes-list-type': 'atomic',
  });

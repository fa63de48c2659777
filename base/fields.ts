/** Returns a copy of the object with only these fields. Fields that the object does not have stay absent. */
export function keepFields<T extends object, Field extends keyof T>(
  object: T,
  fields: readonly Field[],
): Pick<T, Field> {
  const present = fields.filter((field) => object[field] !== undefined);
  return Object.fromEntries(present.map((field) => [field, object[field]])) as Pick<T, Field>;
}

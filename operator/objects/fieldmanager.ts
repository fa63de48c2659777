/** Name of the operator's field manager. */
export const FIELD_MANAGER = 'berth-operator';

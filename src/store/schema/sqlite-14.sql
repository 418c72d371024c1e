-- Takes away what keeps the notes that nodes of schema 12 take: no such node can serve any more.
DROP TRIGGER intake_taken;

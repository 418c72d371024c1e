-- What is derived of submissions is no longer made by triggers in the writers' transactions. Writers only note in `intake`
-- what they touched. formgate derives from what is committed, in one place for both databases: src/store/settle.rs.
--
-- What the triggers before this version keep stays until migration 11, for nodes of the version before.

-- 1. The intake ------------------------------------------------------------------------------------------------------

CREATE TABLE intake (
  submission_id bigint,
  children boolean NOT NULL DEFAULT false,
  form_id bigint
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE intake IS 'What was written and not yet derived from. Writers append, formgate takes out. Without an index, so that appending costs little.';
COMMENT ON COLUMN intake.submission_id IS 'A submission that changed, or an answer or a label of it. Null with form_id null: everything may have changed.';
COMMENT ON COLUMN intake.children IS 'Whether the submissions whose parent it is may have become its children, or ceased to be.';
COMMENT ON COLUMN intake.form_id IS 'A form that became graduated, or ceased to be.';

-- The functions run as their owner, so a writer needs no privilege on the intake, and they name its schema, so the writer's
-- search_path does not matter. They are row triggers and ENABLE ALWAYS because logical replication fires no others.
CREATE FUNCTION formgate_note_submission() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO intake (submission_id, children) VALUES (NEW.id, true);
  ELSIF TG_OP = 'UPDATE' AND NEW.id = OLD.id THEN
    INSERT INTO intake (submission_id, children) VALUES (NEW.id, NEW.form_id <> OLD.form_id);
  ELSE
    INSERT INTO intake (submission_id, children) VALUES (OLD.id, true);
    IF TG_OP = 'UPDATE' THEN
      INSERT INTO intake (submission_id, children) VALUES (NEW.id, true);
    END IF;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_note_submission IS 'Notes a submission that was written.';

CREATE FUNCTION formgate_note_part() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
  END IF;
  IF TG_OP = 'INSERT' OR TG_OP = 'UPDATE' AND NEW.submission_id <> OLD.submission_id THEN
    INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_note_part IS 'Notes the submission whose answer or label was written.';

CREATE FUNCTION formgate_note_form() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO intake (form_id) VALUES (NEW.id);
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_note_form IS 'Notes a form whose submissions take in their children, or release them.';

CREATE FUNCTION formgate_note_everything() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO intake DEFAULT VALUES;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_note_everything IS 'Notes that a table was emptied.';

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['submission', 'part', 'form', 'everything'] LOOP
    EXECUTE format('ALTER FUNCTION formgate_note_%s() SET search_path = %I, pg_temp', name, current_schema());
  END LOOP;
END
$$;

CREATE TRIGGER submissions_written AFTER INSERT OR DELETE ON submissions
  FOR EACH ROW EXECUTE FUNCTION formgate_note_submission();
CREATE TRIGGER submissions_changed AFTER UPDATE ON submissions
  FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION formgate_note_submission();
CREATE TRIGGER answers_written AFTER INSERT OR DELETE ON answers
  FOR EACH ROW EXECUTE FUNCTION formgate_note_part();
CREATE TRIGGER answers_changed AFTER UPDATE ON answers
  FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION formgate_note_part();
CREATE TRIGGER labels_written AFTER INSERT OR DELETE ON submission_labels
  FOR EACH ROW EXECUTE FUNCTION formgate_note_part();
CREATE TRIGGER labels_changed AFTER UPDATE ON submission_labels
  FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION formgate_note_part();
CREATE TRIGGER forms_changed AFTER UPDATE ON forms
  FOR EACH ROW WHEN (OLD.graduated <> NEW.graduated) EXECUTE FUNCTION formgate_note_form();
CREATE TRIGGER submissions_emptied AFTER TRUNCATE ON submissions
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_note_everything();
CREATE TRIGGER answers_emptied AFTER TRUNCATE ON answers
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_note_everything();
CREATE TRIGGER labels_emptied AFTER TRUNCATE ON submission_labels
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_note_everything();
CREATE TRIGGER intake_emptied AFTER TRUNCATE ON intake
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_note_everything();

ALTER TABLE submissions ENABLE ALWAYS TRIGGER submissions_written, ENABLE ALWAYS TRIGGER submissions_changed,
  ENABLE ALWAYS TRIGGER submissions_emptied;
ALTER TABLE answers ENABLE ALWAYS TRIGGER answers_written, ENABLE ALWAYS TRIGGER answers_changed,
  ENABLE ALWAYS TRIGGER answers_emptied;
ALTER TABLE submission_labels ENABLE ALWAYS TRIGGER labels_written, ENABLE ALWAYS TRIGGER labels_changed,
  ENABLE ALWAYS TRIGGER labels_emptied;
ALTER TABLE forms ENABLE ALWAYS TRIGGER forms_changed;
ALTER TABLE intake ENABLE ALWAYS TRIGGER intake_emptied;

-- 2. What is derived -------------------------------------------------------------------------------------------------

CREATE TABLE listed_submissions (
  id bigint PRIMARY KEY,
  form_id bigint NOT NULL,
  status text NOT NULL,
  submitter_id bigint,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL
);
COMMENT ON TABLE listed_submissions IS 'The submissions that are returned by themselves: neither drafts nor children of submissions of graduated forms.';
CREATE INDEX listed_updated ON listed_submissions (updated_at, id);
CREATE INDEX listed_created ON listed_submissions (created_at, id);
CREATE INDEX listed_form_updated ON listed_submissions (form_id, updated_at, id);
CREATE INDEX listed_status_updated ON listed_submissions (status, updated_at, id);
CREATE INDEX listed_form_status_updated ON listed_submissions (form_id, status, updated_at, id);
CREATE INDEX listed_submitter ON listed_submissions (submitter_id);

-- Its keyword indexes are made by formgate: it takes them away while it fills an empty table.
CREATE TABLE listed_documents (
  submission_id bigint PRIMARY KEY,
  shown_in bigint NOT NULL,
  document text NOT NULL
);
COMMENT ON TABLE listed_documents IS 'The folded answers of a submission, joined by U+FDD0, for the keyword search.';
COMMENT ON COLUMN listed_documents.shown_in IS 'The submission that shows the answers: itself, or the parent of a child.';
CREATE INDEX listed_documents_shown_in ON listed_documents (shown_in);

CREATE TABLE listed_terms (
  term bigint NOT NULL,
  shown_in bigint NOT NULL,
  submission_id bigint NOT NULL
);
COMMENT ON TABLE listed_terms IS 'The folded answers and their lines as digests with the element, for the terms filter.';
CREATE INDEX listed_terms_term ON listed_terms (term, shown_in);
CREATE INDEX listed_terms_submission ON listed_terms (submission_id);

CREATE TABLE listed_by_label (
  label_id bigint NOT NULL,
  shared boolean NOT NULL,
  updated_at timestamptz NOT NULL,
  submission_id bigint NOT NULL,
  PRIMARY KEY (label_id, shared, updated_at, submission_id)
);
COMMENT ON TABLE listed_by_label IS 'The labels of the listed submissions, in the order of the pages.';
CREATE INDEX listed_by_label_submission ON listed_by_label (submission_id);

CREATE TABLE listed_counts (
  counted text NOT NULL CHECK (counted IN ('form', 'created', 'updated', 'label', 'shared label')),
  key bigint NOT NULL,
  status text NOT NULL,
  listed bigint NOT NULL,
  PRIMARY KEY (counted, key, status)
) WITH (fillfactor = 50);
COMMENT ON TABLE listed_counts IS 'How many submissions are listed, by form and status, by the day of each instant, by label. A count may be 0.';
COMMENT ON COLUMN listed_counts.key IS 'The id of a form or a label, or days since 1970-01-01 in UTC.';
COMMENT ON COLUMN listed_counts.status IS 'The status where forms are counted, else empty.';

-- The two characters at each place of a document, for keywords that are too short for a trigram. A tsvector holds one
-- megabyte, so a document that could have more says only that it is long, and is read. In PL/pgSQL, because the body of
-- an SQL function would take the place of the call and hide its cost from the planner. The backslash is the same
-- whatever standard_conforming_strings says.
CREATE FUNCTION formgate_pairs(document text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
  IF length(document) > 100000 THEN
    RETURN array_to_tsvector(ARRAY['long']);
  END IF;
  RETURN array_to_tsvector(array_remove(
    string_to_array(regexp_replace(document, '(..)', E'\\1' || chr(64976), 'g'), chr(64976))
    || string_to_array(regexp_replace(substr(document, 2), '(..)', E'\\1' || chr(64976), 'g'), chr(64976)), ''));
END
$$;
COMMENT ON FUNCTION formgate_pairs IS 'The pairs of characters of a document, as the keyword search looks them up.';

-- What is there already has to be derived from.
INSERT INTO intake DEFAULT VALUES;

-- The roles that formgate serves as need to derive. They are the ones that may update tokens.
DO $$
DECLARE
  server text;
BEGIN
  FOR server IN
    SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
    FROM pg_class, aclexplode(relacl)
    WHERE oid = 'tokens'::regclass AND privilege_type = 'UPDATE' AND grantee <> relowner
  LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON intake, listed_submissions, listed_documents, listed_terms, '
      'listed_by_label, listed_counts TO %s', server);
  END LOOP;
END
$$;

-- 3. Instants and addresses ------------------------------------------------------------------------------------------

-- Instants that the API can show; formgate shows those that are there already as the nearest one that it can.
ALTER TABLE submissions ADD CONSTRAINT submissions_instants CHECK (
  created_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-30 22:00:00+00'
  AND updated_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-30 22:00:00+00') NOT VALID;
ALTER TABLE answers ADD CONSTRAINT answers_instants CHECK (
  updated_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-30 22:00:00+00') NOT VALID;

-- Lower case one character at a time, so that a part of a text folds to a part of what the whole folds to: a sigma is the
-- same at the end of a word and inside it. The list holds every letter that Rust's `char::to_lowercase` changes, beyond ASCII, so that
-- no collation and no version of ICU matters; the one letter that becomes two comes before.
CREATE OR REPLACE FUNCTION formgate_fold(value text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
  SELECT CASE WHEN octet_length(value) = length(value) THEN lower(value COLLATE "C")
    ELSE lower(translate(replace(value, chr(304), 'i' || chr(775)),
    'ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞĀĂĄĆĈĊČĎĐĒĔĖĘĚĜĞĠĢĤĦĨĪĬĮĲĴĶĹĻĽĿŁŃŅŇŊŌŎŐŒŔŖŘŚŜŞŠŢŤŦŨŪŬŮŰŲŴŶŸŹŻŽƁƂƄƆƇƉƊƋƎƏƐƑƓƔƖƗƘƜƝƟƠƢƤƦƧƩƬƮƯƱƲƳƵƷƸƼǄǅǇǈǊǋǍǏǑǓǕǗǙǛǞǠǢǤǦǨǪǬǮǱǲǴǶǷǸǺǼǾȀȂȄȆȈȊȌȎȐȒȔȖȘȚȜȞȠȢȤȦȨȪȬȮȰȲȺȻȽȾɁɃɄɅɆɈɊɌɎͰͲͶͿΆΈΉΊΌΎΏΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩΪΫςϏϘϚϜϞϠϢϤϦϨϪϬϮϴϷϹϺϽϾϿЀЁЂЃЄЅІЇЈЉЊЋЌЍЎЏАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯѠѢѤѦѨѪѬѮѰѲѴѶѸѺѼѾҀҊҌҎҐҒҔҖҘҚҜҞҠҢҤҦҨҪҬҮҰҲҴҶҸҺҼҾӀӁӃӅӇӉӋӍӐӒӔӖӘӚӜӞӠӢӤӦӨӪӬӮӰӲӴӶӸӺӼӾԀԂԄԆԈԊԌԎԐԒԔԖԘԚԜԞԠԢԤԦԨԪԬԮԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿՀՁՂՃՄՅՆՇՈՉՊՋՌՍՎՏՐՑՒՓՔՕՖႠႡႢႣႤႥႦႧႨႩႪႫႬႭႮႯႰႱႲႳႴႵႶႷႸႹႺႻႼႽႾႿჀჁჂჃჄჅჇჍᎠᎡᎢᎣᎤᎥᎦᎧᎨᎩᎪᎫᎬᎭᎮᎯᎰᎱᎲᎳᎴᎵᎶᎷᎸᎹᎺᎻᎼᎽᎾᎿᏀᏁᏂᏃᏄᏅᏆᏇᏈᏉᏊᏋᏌᏍᏎᏏᏐᏑᏒᏓᏔᏕᏖᏗᏘᏙᏚᏛᏜᏝᏞᏟᏠᏡᏢᏣᏤᏥᏦᏧᏨᏩᏪᏫᏬᏭᏮᏯᏰᏱᏲᏳᏴᏵᲉᲐᲑᲒᲓᲔᲕᲖᲗᲘᲙᲚᲛᲜᲝᲞᲟᲠᲡᲢᲣᲤᲥᲦᲧᲨᲩᲪᲫᲬᲭᲮᲯᲰᲱᲲᲳᲴᲵᲶᲷᲸᲹᲺᲽᲾᲿḀḂḄḆḈḊḌḎḐḒḔḖḘḚḜḞḠḢḤḦḨḪḬḮḰḲḴḶḸḺḼḾṀṂṄṆṈṊṌṎṐṒṔṖṘṚṜṞṠṢṤṦṨṪṬṮṰṲṴṶṸṺṼṾẀẂẄẆẈẊẌẎẐẒẔẞẠẢẤẦẨẪẬẮẰẲẴẶẸẺẼẾỀỂỄỆỈỊỌỎỐỒỔỖỘỚỜỞỠỢỤỦỨỪỬỮỰỲỴỶỸỺỼỾἈἉἊἋἌἍἎἏἘἙἚἛἜἝἨἩἪἫἬἭἮἯἸἹἺἻἼἽἾἿὈὉὊὋὌὍὙὛὝὟὨὩὪὫὬὭὮὯᾈᾉᾊᾋᾌᾍᾎᾏᾘᾙᾚᾛᾜᾝᾞᾟᾨᾩᾪᾫᾬᾭᾮᾯᾸᾹᾺΆᾼῈΈῊΉῌῘῙῚΊῨῩῪΎῬῸΌῺΏῼΩKÅℲⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩⅪⅫⅬⅭⅮⅯↃⒶⒷⒸⒹⒺⒻⒼⒽⒾⒿⓀⓁⓂⓃⓄⓅⓆⓇⓈⓉⓊⓋⓌⓍⓎⓏⰀⰁⰂⰃⰄⰅⰆⰇⰈⰉⰊⰋⰌⰍⰎⰏⰐⰑⰒⰓⰔⰕⰖⰗⰘⰙⰚⰛⰜⰝⰞⰟⰠⰡⰢⰣⰤⰥⰦⰧⰨⰩⰪⰫⰬⰭⰮⰯⱠⱢⱣⱤⱧⱩⱫⱭⱮⱯⱰⱲⱵⱾⱿⲀⲂⲄⲆⲈⲊⲌⲎⲐⲒⲔⲖⲘⲚⲜⲞⲠⲢⲤⲦⲨⲪⲬⲮⲰⲲⲴⲶⲸⲺⲼⲾⳀⳂⳄⳆⳈⳊⳌⳎⳐⳒⳔⳖⳘⳚⳜⳞⳠⳢⳫⳭⳲꙀꙂꙄꙆꙈꙊꙌꙎꙐꙒꙔꙖꙘꙚꙜꙞꙠꙢꙤꙦꙨꙪꙬꚀꚂꚄꚆꚈꚊꚌꚎꚐꚒꚔꚖꚘꚚꜢꜤꜦꜨꜪꜬꜮꜲꜴꜶꜸꜺꜼꜾꝀꝂꝄꝆꝈꝊꝌꝎꝐꝒꝔꝖꝘꝚꝜꝞꝠꝢꝤꝦꝨꝪꝬꝮꝹꝻꝽꝾꞀꞂꞄꞆꞋꞍꞐꞒꞖꞘꞚꞜꞞꞠꞢꞤꞦꞨꞪꞫꞬꞭꞮꞰꞱꞲꞳꞴꞶꞸꞺꞼꞾꟀꟂꟄꟅꟆꟇꟉꟋꟌ꟎Ꟑ꟒꟔ꟖꟘꟚꟜꟵＡＢＣＤＥＦＧＨＩＪＫＬＭＮＯＰＱＲＳＴＵＶＷＸＹＺ𐐀𐐁𐐂𐐃𐐄𐐅𐐆𐐇𐐈𐐉𐐊𐐋𐐌𐐍𐐎𐐏𐐐𐐑𐐒𐐓𐐔𐐕𐐖𐐗𐐘𐐙𐐚𐐛𐐜𐐝𐐞𐐟𐐠𐐡𐐢𐐣𐐤𐐥𐐦𐐧𐒰𐒱𐒲𐒳𐒴𐒵𐒶𐒷𐒸𐒹𐒺𐒻𐒼𐒽𐒾𐒿𐓀𐓁𐓂𐓃𐓄𐓅𐓆𐓇𐓈𐓉𐓊𐓋𐓌𐓍𐓎𐓏𐓐𐓑𐓒𐓓𐕰𐕱𐕲𐕳𐕴𐕵𐕶𐕷𐕸𐕹𐕺𐕼𐕽𐕾𐕿𐖀𐖁𐖂𐖃𐖄𐖅𐖆𐖇𐖈𐖉𐖊𐖌𐖍𐖎𐖏𐖐𐖑𐖒𐖔𐖕𐲀𐲁𐲂𐲃𐲄𐲅𐲆𐲇𐲈𐲉𐲊𐲋𐲌𐲍𐲎𐲏𐲐𐲑𐲒𐲓𐲔𐲕𐲖𐲗𐲘𐲙𐲚𐲛𐲜𐲝𐲞𐲟𐲠𐲡𐲢𐲣𐲤𐲥𐲦𐲧𐲨𐲩𐲪𐲫𐲬𐲭𐲮𐲯𐲰𐲱𐲲𐵐𐵑𐵒𐵓𐵔𐵕𐵖𐵗𐵘𐵙𐵚𐵛𐵜𐵝𐵞𐵟𐵠𐵡𐵢𐵣𐵤𐵥𑢠𑢡𑢢𑢣𑢤𑢥𑢦𑢧𑢨𑢩𑢪𑢫𑢬𑢭𑢮𑢯𑢰𑢱𑢲𑢳𑢴𑢵𑢶𑢷𑢸𑢹𑢺𑢻𑢼𑢽𑢾𑢿𖹀𖹁𖹂𖹃𖹄𖹅𖹆𖹇𖹈𖹉𖹊𖹋𖹌𖹍𖹎𖹏𖹐𖹑𖹒𖹓𖹔𖹕𖹖𖹗𖹘𖹙𖹚𖹛𖹜𖹝𖹞𖹟𖺠𖺡𖺢𖺣𖺤𖺥𖺦𖺧𖺨𖺩𖺪𖺫𖺬𖺭𖺮𖺯𖺰𖺱𖺲𖺳𖺴𖺵𖺶𖺷𖺸𞤀𞤁𞤂𞤃𞤄𞤅𞤆𞤇𞤈𞤉𞤊𞤋𞤌𞤍𞤎𞤏𞤐𞤑𞤒𞤓𞤔𞤕𞤖𞤗𞤘𞤙𞤚𞤛𞤜𞤝𞤞𞤟𞤠𞤡',
    'àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþāăąćĉċčďđēĕėęěĝğġģĥħĩīĭįĳĵķĺļľŀłńņňŋōŏőœŕŗřśŝşšţťŧũūŭůűųŵŷÿźżžɓƃƅɔƈɖɗƌǝəɛƒɠɣɩɨƙɯɲɵơƣƥʀƨʃƭʈưʊʋƴƶʒƹƽǆǆǉǉǌǌǎǐǒǔǖǘǚǜǟǡǣǥǧǩǫǭǯǳǳǵƕƿǹǻǽǿȁȃȅȇȉȋȍȏȑȓȕȗșțȝȟƞȣȥȧȩȫȭȯȱȳⱥȼƚⱦɂƀʉʌɇɉɋɍɏͱͳͷϳάέήίόύώαβγδεζηθικλμνξοπρστυφχψωϊϋσϗϙϛϝϟϡϣϥϧϩϫϭϯθϸϲϻͻͼͽѐёђѓєѕіїјљњћќѝўџабвгдежзийклмнопрстуфхцчшщъыьэюяѡѣѥѧѩѫѭѯѱѳѵѷѹѻѽѿҁҋҍҏґғҕҗҙқҝҟҡңҥҧҩҫҭүұҳҵҷҹһҽҿӏӂӄӆӈӊӌӎӑӓӕӗәӛӝӟӡӣӥӧөӫӭӯӱӳӵӷӹӻӽӿԁԃԅԇԉԋԍԏԑԓԕԗԙԛԝԟԡԣԥԧԩԫԭԯաբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆⴀⴁⴂⴃⴄⴅⴆⴇⴈⴉⴊⴋⴌⴍⴎⴏⴐⴑⴒⴓⴔⴕⴖⴗⴘⴙⴚⴛⴜⴝⴞⴟⴠⴡⴢⴣⴤⴥⴧⴭꭰꭱꭲꭳꭴꭵꭶꭷꭸꭹꭺꭻꭼꭽꭾꭿꮀꮁꮂꮃꮄꮅꮆꮇꮈꮉꮊꮋꮌꮍꮎꮏꮐꮑꮒꮓꮔꮕꮖꮗꮘꮙꮚꮛꮜꮝꮞꮟꮠꮡꮢꮣꮤꮥꮦꮧꮨꮩꮪꮫꮬꮭꮮꮯꮰꮱꮲꮳꮴꮵꮶꮷꮸꮹꮺꮻꮼꮽꮾꮿᏸᏹᏺᏻᏼᏽᲊაბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰჱჲჳჴჵჶჷჸჹჺჽჾჿḁḃḅḇḉḋḍḏḑḓḕḗḙḛḝḟḡḣḥḧḩḫḭḯḱḳḵḷḹḻḽḿṁṃṅṇṉṋṍṏṑṓṕṗṙṛṝṟṡṣṥṧṩṫṭṯṱṳṵṷṹṻṽṿẁẃẅẇẉẋẍẏẑẓẕßạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹỻỽỿἀἁἂἃἄἅἆἇἐἑἒἓἔἕἠἡἢἣἤἥἦἧἰἱἲἳἴἵἶἷὀὁὂὃὄὅὑὓὕὗὠὡὢὣὤὥὦὧᾀᾁᾂᾃᾄᾅᾆᾇᾐᾑᾒᾓᾔᾕᾖᾗᾠᾡᾢᾣᾤᾥᾦᾧᾰᾱὰάᾳὲέὴήῃῐῑὶίῠῡὺύῥὸόὼώῳωkåⅎⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅺⅻⅼⅽⅾⅿↄⓐⓑⓒⓓⓔⓕⓖⓗⓘⓙⓚⓛⓜⓝⓞⓟⓠⓡⓢⓣⓤⓥⓦⓧⓨⓩⰰⰱⰲⰳⰴⰵⰶⰷⰸⰹⰺⰻⰼⰽⰾⰿⱀⱁⱂⱃⱄⱅⱆⱇⱈⱉⱊⱋⱌⱍⱎⱏⱐⱑⱒⱓⱔⱕⱖⱗⱘⱙⱚⱛⱜⱝⱞⱟⱡɫᵽɽⱨⱪⱬɑɱɐɒⱳⱶȿɀⲁⲃⲅⲇⲉⲋⲍⲏⲑⲓⲕⲗⲙⲛⲝⲟⲡⲣⲥⲧⲩⲫⲭⲯⲱⲳⲵⲷⲹⲻⲽⲿⳁⳃⳅⳇⳉⳋⳍⳏⳑⳓⳕⳗⳙⳛⳝⳟⳡⳣⳬⳮⳳꙁꙃꙅꙇꙉꙋꙍꙏꙑꙓꙕꙗꙙꙛꙝꙟꙡꙣꙥꙧꙩꙫꙭꚁꚃꚅꚇꚉꚋꚍꚏꚑꚓꚕꚗꚙꚛꜣꜥꜧꜩꜫꜭꜯꜳꜵꜷꜹꜻꜽꜿꝁꝃꝅꝇꝉꝋꝍꝏꝑꝓꝕꝗꝙꝛꝝꝟꝡꝣꝥꝧꝩꝫꝭꝯꝺꝼᵹꝿꞁꞃꞅꞇꞌɥꞑꞓꞗꞙꞛꞝꞟꞡꞣꞥꞧꞩɦɜɡɬɪʞʇʝꭓꞵꞷꞹꞻꞽꞿꟁꟃꞔʂᶎꟈꟊɤꟍ꟏ꟑꟓꟕꟗꟙꟛƛꟶａｂｃｄｅｆｇｈｉｊｋｌｍｎｏｐｑｒｓｔｕｖｗｘｙｚ𐐨𐐩𐐪𐐫𐐬𐐭𐐮𐐯𐐰𐐱𐐲𐐳𐐴𐐵𐐶𐐷𐐸𐐹𐐺𐐻𐐼𐐽𐐾𐐿𐑀𐑁𐑂𐑃𐑄𐑅𐑆𐑇𐑈𐑉𐑊𐑋𐑌𐑍𐑎𐑏𐓘𐓙𐓚𐓛𐓜𐓝𐓞𐓟𐓠𐓡𐓢𐓣𐓤𐓥𐓦𐓧𐓨𐓩𐓪𐓫𐓬𐓭𐓮𐓯𐓰𐓱𐓲𐓳𐓴𐓵𐓶𐓷𐓸𐓹𐓺𐓻𐖗𐖘𐖙𐖚𐖛𐖜𐖝𐖞𐖟𐖠𐖡𐖣𐖤𐖥𐖦𐖧𐖨𐖩𐖪𐖫𐖬𐖭𐖮𐖯𐖰𐖱𐖳𐖴𐖵𐖶𐖷𐖸𐖹𐖻𐖼𐳀𐳁𐳂𐳃𐳄𐳅𐳆𐳇𐳈𐳉𐳊𐳋𐳌𐳍𐳎𐳏𐳐𐳑𐳒𐳓𐳔𐳕𐳖𐳗𐳘𐳙𐳚𐳛𐳜𐳝𐳞𐳟𐳠𐳡𐳢𐳣𐳤𐳥𐳦𐳧𐳨𐳩𐳪𐳫𐳬𐳭𐳮𐳯𐳰𐳱𐳲𐵰𐵱𐵲𐵳𐵴𐵵𐵶𐵷𐵸𐵹𐵺𐵻𐵼𐵽𐵾𐵿𐶀𐶁𐶂𐶃𐶄𐶅𑣀𑣁𑣂𑣃𑣄𑣅𑣆𑣇𑣈𑣉𑣊𑣋𑣌𑣍𑣎𑣏𑣐𑣑𑣒𑣓𑣔𑣕𑣖𑣗𑣘𑣙𑣚𑣛𑣜𑣝𑣞𑣟𖹠𖹡𖹢𖹣𖹤𖹥𖹦𖹧𖹨𖹩𖹪𖹫𖹬𖹭𖹮𖹯𖹰𖹱𖹲𖹳𖹴𖹵𖹶𖹷𖹸𖹹𖹺𖹻𖹼𖹽𖹾𖹿𖺻𖺼𖺽𖺾𖺿𖻀𖻁𖻂𖻃𖻄𖻅𖻆𖻇𖻈𖻉𖻊𖻋𖻌𖻍𖻎𖻏𖻐𖻑𖻒𖻓𞤢𞤣𞤤𞤥𞤦𞤧𞤨𞤩𞤪𞤫𞤬𞤭𞤮𞤯𞤰𞤱𞤲𞤳𞤴𞤵𞤶𞤷𞤸𞤹𞤺𞤻𞤼𞤽𞤾𞤿𞥀𞥁𞥂𞥃') COLLATE "C") END
$$;
DO $$
DECLARE
  one bigint;
BEGIN
  FOR one IN SELECT id FROM users WHERE email_folded <> formgate_fold(email) LOOP
    BEGIN
      UPDATE users SET email = email WHERE id = one;
    EXCEPTION WHEN unique_violation THEN
      RAISE WARNING 'users: the address of % is that of another user but for its case', one;
    END;
  END LOOP;
END
$$;

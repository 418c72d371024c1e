json_build_object('id', 'sub_' || s.id, 'status', s.status, 'created_at', s.created_at, 'updated_at', s.updated_at,
  'allElements', (SELECT coalesce(json_agg(json_build_object('gid', e.gid, 'name', e.name, 'type', e.type,
      'value', coalesce(a.value, ''), 'files', coalesce(a.files, '[]'),
      'updated_at', coalesce(a.updated_at, s.updated_at)) ORDER BY e.position, e.id), '[]')
    FROM elements e LEFT JOIN answers a ON a.submission_id = s.id AND a.element_id = e.id WHERE e.form_id = s.form_id))

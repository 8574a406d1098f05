"""What messages of the `cdc` format are made of: docs/protocols/cdc.md."""


cdef enum:
    MAGIC = 0xBAAAD700
    VERSION = 1
    HEADER_SIZE = 14        # magic, version, timestamp, type
    TYPE_DML = 0
    TYPE_DDL = 1
    # what was done to a row, in the profile "operations"
    DML_INSERT = 1
    DML_UPDATE = 2
    DML_DELETE = 3
    # the data type of a value that is NULL, in the profile "document"
    TYPE_NULL = 6
    # MySQL's own column flags, as TiDB's ColumnInfo has them
    MYSQL_NOT_NULL = 1
    MYSQL_PRIMARY_KEY = 2
    MYSQL_UNIQUE_KEY = 4
    MYSQL_MULTIPLE_KEY = 8
    MYSQL_BLOB = 16
    MYSQL_UNSIGNED = 32
    MYSQL_BINARY = 128
    STATE_PUBLIC = 5
    # what tg_shift_decimal may add to a number's text
    NUMBER_ROOM = 404


cdef enum Profile:
    PROFILE_ANY
    PROFILE_DOCUMENT
    PROFILE_OPERATIONS

package dev.phalanx.spark.scoring

import scala.annotation.tailrec

import org.apache.spark.sql.types.{ArrayType, DataType, MapType, StructType, UserDefinedType}

/** Which of Spark's types can go to a model, as `feeding/spark_types.py` has it for Python; the tests of both read
  * `tests/contract/spark_types.json` (FEED-75). Types are known by name, since Spark 3.5 doesn't have all of them.
  */
private[spark] object InputTypes {
  private val Texts = Set("String", "Char", "Varchar", "Binary")
  private val Atoms = Texts ++
    Set("Byte", "Short", "Integer", "Long", "Float", "Double", "Boolean", "Decimal") ++
    Set("Date", "Time", "Timestamp", "TimestampNTZ", "DayTimeInterval")

  /** Whether a type is that of Spark ML's vectors. */
  def isVector(kind: DataType): Boolean = kind.typeName == "vector"

  /** Whether a type is one of numbers, of arrays of these, or of texts, which are a list; a user's own by what it is
    * stored as.
    */
  def canBeTensor(kind: DataType): Boolean = isVector(kind) || canBeTensor(kind, within = false)

  /** Whether Spark brings values of a type to Arrow, which a message can show; a user's own by what it is stored as. */
  def canTravel(kind: DataType): Boolean = isVector(kind) || travels(storedAs(kind))

  @tailrec
  private def canBeTensor(kind: DataType, within: Boolean): Boolean = storedAs(kind) match {
    case array: ArrayType => canBeTensor(array.elementType, within = true)
    case other            => Atoms(name(other)) && !(within && Texts(name(other)))
  }

  private def travels(kind: DataType): Boolean = kind match {
    case array: ArrayType => travels(array.elementType)
    case map: MapType     => travels(map.keyType) && travels(map.valueType)
    case row: StructType  => row.fields.forall(field => travels(field.dataType))
    case other            => Atoms(name(other))
  }

  @tailrec
  private def storedAs(kind: DataType): DataType = kind match {
    case own: UserDefinedType[_] if !isVector(own) => storedAs(own.sqlType)
    case other                                     => other
  }

  private def name(kind: DataType): String = kind.getClass.getSimpleName.stripSuffix("$").stripSuffix("Type")
}
